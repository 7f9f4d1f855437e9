"""Placements of all roles on one rank (:class:`Places`), as requested and as available on this machine."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from psframe import compiled
from psframe.config.placement_spec import ROLES, spelled_out
from psframe.config.registry import Choice
from psframe.errors import UserError
from psframe.memory import pages
from psframe.memory.allocator import Home
from psframe.memory.auto import Auto, has_tiers
from psframe.memory.budget import Demand
from psframe.memory.by_tensor import ROLES as WITH_TENSORS
from psframe.memory.by_tensor import ByTensor
from psframe.memory.pages import RESERVED_BYTES, HugePages, Policy, no_huge_pages, populate
from psframe.memory.placement import DDR, Default, MissingMemoryError, Placement, existing, placement_of
from psframe.memory.process_site import Site
from psframe.memory.tensor_names import Names, key_of, place_of, role_of

#: the data are one shared segment per machine; memory of the other roles is each rank's own
SHARED = ("data",)
#: placements of memory near the rank that touches it first
NEAR = ("default", "ddr", "hbw")


def made(choice: Choice, role: str) -> Placement:
    """Return the placement that a config chose for a role; UserError if it is none, or none for this role."""
    placement = placement_of(choice)
    if isinstance(placement, ByTensor) and role not in WITH_TENSORS:
        raise UserError(
            f"placement.{role} must be one place, since it has no tensors, got {choice.name}; name, say, hbw, or "
            f"place these by tensor: {', '.join(WITH_TENSORS)}"
        )
    return placement


class Places:
    """Placements by place: a role, a pattern below it, or, once :meth:`settle` knows them, a tensor.

    Parameters
    ----------
    choices : mapping of str to Choice
        The requested placements, by role.
    fallback : {'none', 'ddr', 'default'}
        Replacement for memory that does not exist on this machine.

    Attributes
    ----------
    asked, got : dict of str to str
        Names of the requested and actual placements, by place; they differ after a fallback or a spill.
    policies : dict of str to Policy
        By place; of a role by tensor, that of its default.
    by_tensor : dict of str to list of str
        Roles by tensor, with their patterns.
    all : list of str
        The roles, and the tensors of those by tensor.
    auto : dict of str to Auto
        Roles by a plan, where this machine has several tiers for one; :meth:`put` then places them.
    asks_by_tensor, asks_for_plan : bool
        True if a role is asked to lie by tensor, or by a plan; the same on all ranks of a job.
    gbps : dict of str to float
        Bandwidths that the user gave for it, by tier.
    plan : dict
        The plan, as :mod:`psframe.train.tier_places` makes it; empty without one.
    near : list of str
        Roles whose memory is placed near the rank, whether they are spilled or not.
    mixed : Counter
        Pages of this rank's tensors that hold bytes of others, too, by place.

    Raises
    ------
    UserError
        Requested memory does not exist and there is no fallback, or a placement is invalid.
    """

    def __init__(self, site: Site, choices: Mapping[str, Choice], fallback: str = "none"):
        self.site, self.fallback = site, fallback
        self.asked = {role: choices[role].name for role in ROLES}
        self.got = dict(self.asked)
        self.placements: dict[str, Placement] = {role: made(choices[role], role) for role in ROLES}
        self.by_tensor: dict[str, list[str]] = {}
        self.all, self.mixed = [*ROLES], Counter[str]()
        self.auto: dict[str, Auto] = {}
        self.gbps: dict[str, float] = {}
        self.plan: dict[str, Any] = {}
        self.asks_by_tensor = self.asks_for_plan = False
        for role, placement in list(self.placements.items()):
            if isinstance(placement, ByTensor):
                self._add_patterns(role, placement, choices[role])
            elif isinstance(placement, Auto):
                self._add_auto(role, placement)
        self.policies: dict[str, Policy] = {}
        for place in self.placements:
            try:
                self.policies[place] = self._policy(place)
            except MissingMemoryError as error:
                if fallback == "none":
                    raise UserError(f"{key_of(place)}: {error}") from None
                self._replace(place, fallback)
                site.note(f"{key_of(place)}={self.asked[place]} fell back to {self.got[place]}: {error}")
            except UserError as error:
                raise UserError(f"{key_of(place)}: {error}") from None

        self._first = self.got | {role: "default" for role in ROLES if isinstance(self.placements[role], Auto)}
        self.near = [
            role
            for role in ROLES
            if all(
                self._first[place] in NEAR and self.policies[place].mode != "interleave"
                for place in self.placements
                if role_of(place) == role
            )
        ]

    def _add_patterns(self, role: str, placement: ByTensor, choice: Choice) -> None:
        """Add the placements of a role by tensor."""
        self.asks_by_tensor = True
        self.placements[role] = placement.default
        self.asked[role] = self.got[role] = spelled_out(choice.arguments["default"])["name"]
        for pattern, of_pattern in placement.tensors.items():
            place = place_of(role, pattern)
            self.placements[place] = of_pattern
            self.asked[place] = self.got[place] = spelled_out(choice.arguments["tensors"][pattern])["name"]
        self.by_tensor[role] = [*placement.tensors]

    def _add_auto(self, role: str, placement: Auto) -> None:
        """Note a role that a plan will place, if there is anything to choose from."""
        self.asks_by_tensor = self.asks_for_plan = True
        if placement.move_gbps and role != "activations":
            raise UserError(
                f"placement.{role}.move_gbps must be of activations, which alone move in a step, got it for {role}; "
                "give placement.activations.move_gbps"
            )
        for tier, rate in placement.gbps.items():
            if self.gbps.setdefault(tier, rate) != rate:
                raise UserError(
                    f"placement.{role}.gbps must be the same for all roles, got {rate:g} and {self.gbps[tier]:g} for "
                    f"{tier}; give one"
                )
        if has_tiers(self.site):
            self.auto[role] = placement
            if role in WITH_TENSORS:
                self.by_tensor[role] = []

    def settle(self, tensors: Mapping[str, Iterable[str]]) -> None:
        """Place the tensors of roles by tensor: those of all ranks, by role.

        UserError if a pattern matches none.
        """
        self.all = [*ROLES]
        for role, patterns in self.by_tensor.items():
            names = Names(tensors.get(role, ()))
            names.check(key_of(role), patterns)
            for tensor in names.tensors:
                self._settle(place_of(role, tensor), place_of(role, names.chosen(tensor, patterns) or ""))

    def put(self, place: str, placement: Placement, name: str) -> None:
        """Place a role or a tensor as a plan says."""
        self.placements[place], self.got[place] = placement, name
        self.policies[place] = self._policy(place)

    def _settle(self, place: str, like: str) -> None:
        """Place memory like that of another place."""
        self.placements[place], self.policies[place] = self.placements[like], self.policies[like]
        self.asked[place], self.got[place] = self.asked[like], self.got[like]
        self.all.append(place)

    def _policy(self, place: str) -> Policy:
        policy = self.placements[place].policy(self.site, place in SHARED)
        if not isinstance(policy, Policy):
            raise UserError(f"a placement's policy must be a psframe.memory.pages.Policy, got {policy!r}; return one")
        n_weights = len(policy.nodes) if policy.mode == "weighted" else 0
        has_weights = len(policy.weights) == n_weights and all(weight > 0 for weight in policy.weights)
        if policy.mode not in compiled.numa.MODES or policy.huge_pages not in RESERVED_BYTES or not has_weights:
            raise UserError(
                "a Policy must have the kernel's modes and page sizes, and positive weights of its nodes if it is "
                f"`weighted`, got {policy}; see its docstring"
            )
        if policy.mode != "default":
            existing(policy.nodes, self.site)
        return policy

    def _replace(self, place: str, name: str) -> None:
        ordinary = name == "ddr" and self.site.topology.ddr
        # transparent huge pages are available on any node, reserved ones perhaps not
        requested = getattr(self.placements[place], "huge_pages", "none")
        huge_pages: HugePages = "transparent" if requested == "transparent" else "none"
        if requested in ("2M", "1G"):
            self.site.note(f"{key_of(place)} goes without its huge_pages: {requested} where it goes instead")
        self.got[place] = "ddr" if ordinary else "default"
        self.placements[place] = (DDR if ordinary else Default)(huge_pages=huge_pages)
        self.policies[place] = self._policy(place)

    def is_strict(self, place: str) -> bool:
        """Return True if memory must lie on certain nodes, or in reserved huge pages."""
        return Demand(place, 1, self.policies[place]).strict

    def spill(self, role: str) -> None:
        """Move a role that does not fit to ordinary memory, with all of its tensors."""
        for place in [place for place in self.placements if role_of(place) == role]:
            self._replace(place, "ddr")
        if role in self.auto:
            self.plan["spilled"] = [*self.plan.get("spilled", []), role]
        self.site.note(f"placement.{role}={self.asked[role]} does not fit and was spilled to {self.got[role]}")

    def allocate(self, place: str, n_bytes: int) -> Any:
        """Return zeroed private memory for a place; memory with requested nodes is touched at once, by this rank.

        OSError if the allocation fails; UserError if too few huge pages are reserved.
        """
        policy = self.policies[place]
        try:
            block = self.placements[place].allocate(n_bytes, self.site)
        except OSError as error:
            if RESERVED_BYTES[policy.huge_pages]:
                raise no_huge_pages(policy, n_bytes) from error
            raise
        if n_bytes and (policy.nodes or type(block) is not compiled.numa.Block):  # a Block is zeroed
            np.frombuffer(block, np.uint8)[:] = 0
        return block

    def bind(self, role: str, memory: np.ndarray) -> None:
        """Set the policy of a shared mapping, uint8 (n,), before its first touch. One rank of the node calls."""
        self.placements[role].bind(memory, self.site)
        if self.policies[role].huge_pages != "none":
            # Transparent huge pages come only on touch through the mapping with madvise. For reserved ones, mbind
            # applies to its own mapping, not to the file.
            populate(memory)

    def adopt(self, place: str, memory: np.ndarray) -> None:
        """Place and allocate this rank's own pages of a mapping, uint8 (n,), as its private memory.

        UserError if too few pages are free.
        """
        policy = self.policies[place]
        pages.bind(memory, policy, self.site.note)
        try:
            populate(memory)
        except OSError as error:
            if RESERVED_BYTES[policy.huge_pages]:
                raise no_huge_pages(policy, len(memory)) from None
            raise UserError(
                f"a rank must have memory for its {role_of(place)}, got none for {len(memory):,} bytes of what its "
                f"node shares ({error.strerror}); start fewer ranks or choose a smaller model"
            ) from None

    def homes(self) -> dict[str, Home]:
        """Return the home of every role, as this rank sees it; a later spill or plan does not change its name.

        What is built by it must be the same when memory is counted and when it is taken.
        """
        return {role: Home(self._first[role], self.policies[role].page_bytes, role in self.by_tensor) for role in ROLES}

    def summary(self) -> dict[str, str]:
        """Return the requested placement of every role and tensor, as "requested -> actual" if they differ."""
        named = ((place, self.asked[place], self.got[place]) for place in self.all)
        return {place: name if name == actual else f"{name} -> {actual}" for place, name, actual in named}
