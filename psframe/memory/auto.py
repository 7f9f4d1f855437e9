"""Placement of tensors where they gain most (:class:`Auto`), and the tiers it chooses from (:func:`tiers`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import lcm
from typing import Literal

from psframe.config.registry import Positive
from psframe.errors import UserError, nearest
from psframe.memory.hbw import HBW
from psframe.memory.pages import Policy
from psframe.memory.placement import DDR, BasePlacement, Numa, Placement, Weighted
from psframe.memory.process_site import Site
from psframe.memory.tier_options import Option

NAMES = ("hbw", "ddr", "other")  #: tiers, the fastest first
#: GB/s of all memory of a tier, by platform: STREAM triad
PUBLISHED = {
    "knl": ({"hbw": 421.7, "ddr": 88.4}, "K. Rupp 2016, Xeon Phi 7250, measured"),
    "xeon-max": ({"hbw": 1640.0, "ddr": 470.0}, "after J. D. McCalpin 2023, two Xeon Max 9480, estimated"),
}
ASSUMED = {"hbw": 400.0, "ddr": 100.0, "other": 25.0}


class Auto(BasePlacement):
    """Placement by a plan: each tensor in the tier where the step gains most (:mod:`psframe.memory.tier_plan`).

    On a machine with one tier there is nothing to plan, and the role lies as by ``default``.

    Parameters
    ----------
    split : bool
        True if a tensor may lie in two tiers, in proportion to their bandwidths, so that these add up.
    most_mb : float, optional
        Most MB (10^6 bytes) of the fastest tier that the ranks which share a part of it may take; by default all
        that is free.
    move_gbps : float, optional
        GB/s at which a thread of a rank moves pages between tiers while others compute; with it, activations may leave
        fast memory between forward and backward, or come to it for these. By default nothing moves in a step.
    gbps : mapping of str to float, optional
        Bandwidths in GB/s of all memory of the tiers ``hbw``, ``ddr`` and ``other``, where they are known better than
        by the firmware.
    """

    def __init__(
        self,
        *,
        split: bool = False,
        most_mb: Positive | None = None,
        move_gbps: Positive | None = None,
        gbps: Mapping[str, Positive] | None = None,
        huge_pages: Literal["none", "transparent"] = "none",
    ):
        super().__init__(huge_pages=huge_pages)
        self.split, self.most_mb, self.move_gbps, self.gbps = split, most_mb, move_gbps, dict(gbps or {})
        if wrong := [tier for tier in self.gbps if tier not in NAMES]:
            raise UserError(f"gbps must be of tiers, got {wrong[0]!r}; {nearest(wrong[0], NAMES)}")

    def policy(self, site: Site, shared: bool) -> Policy:
        return Policy(huge_pages=self.huge_pages)

    def chosen(self, site: Site, reaches: Sequence["Reach"], option: Option, shared: bool) -> Placement:
        """Return the placement of a tensor that the plan has put into one or two of the tiers.

        ``shared``: it is memory that all ranks of a node map.
        """
        if len(option.tiers) == 1:
            return self._alone(site, reaches[option.tiers[0]].name)
        keys: dict[int, tuple[str | int, ...]] = {}
        for tier in option.tiers:
            reach = reaches[tier]
            keys[tier] = (reach.name,)
            if reach.name == "other":
                keys[tier] = site.topology.of_tier(reach.name)[:1]
            elif shared and reach.name == "hbw":  # the nodes that the plan reckons with, not all of the tier
                keys[tier] = reach.nodes
        common = lcm(*map(len, keys.values()))
        weights = {key: option.weights[tier] * common // len(found) for tier, found in keys.items() for key in found}
        return Weighted(weights=weights, huge_pages=self.huge_pages)

    def _alone(self, site: Site, tier: str) -> Placement:
        if tier == "other":
            return Numa(nodes=site.topology.of_tier(tier), huge_pages=self.huge_pages)
        return (HBW if tier == "hbw" else DDR)(huge_pages=self.huge_pages)


@dataclass(frozen=True)
class Reach:
    """Memory of one tier that a rank's tensors may come from.

    Attributes
    ----------
    name : str
    nodes : tuple of int
        NUMA nodes, the nearest first.
    gbps : float
        Bandwidth in GB/s of the nearest of them.
    source : str
        Origin of the bandwidth.
    """

    name: str
    nodes: tuple[int, ...]
    gbps: float
    source: str


def has_tiers(site: Site) -> bool:
    """Return True if this machine has memory of several tiers, also if this process may use one of them only.

    So all ranks of a machine say the same.
    """
    return len({node.tier for node in site.topology.nodes if node.tier in NAMES}) > 1


def tiers(site: Site, gbps: Mapping[str, float]) -> list[Reach]:
    """Return the tiers that this machine has, the fastest first.

    A bandwidth is the user's (``gbps``), the firmware's, a published one of this platform, or, for lack of all of
    these, assumed.
    """
    present = [name for name in NAMES if site.topology.of_tier(name)]
    by_firmware = all(site.topology.node(n).bandwidth_mbps for name in present for n in site.topology.of_tier(name))
    published, paper = PUBLISHED.get(site.topology.platform or "", ({}, ""))
    reaches = []
    for name in present:
        every = site.topology.of_tier(name)
        near = site.nearest(every)
        if name in gbps:
            rate, source = gbps[name] * len(near) / len(every), "given"
        elif by_firmware:
            rate = sum(site.topology.node(n).bandwidth_mbps or 0 for n in near) / 1e3
            source = "firmware (HMAT)"
        elif all(other in published for other in present):
            rate, source = published[name] * len(near) / len(every), paper
        else:
            rate, source = ASSUMED[name] * len(near) / len(every), "assumed"
        nodes = near if name == "hbw" else site.by_distance(every)  # as HBW and DDR bind
        reaches.append(Reach(name, nodes, rate, source))
    return sorted(reaches, key=lambda reach: -reach.gbps)
