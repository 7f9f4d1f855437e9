"""Placement of ``auto`` roles by a plan (:func:`arrange`), one for all ranks that share memory, and its account."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from psframe import compiled
from psframe.cluster.cluster import Cluster
from psframe.errors import UserError
from psframe.memory import budget, tier_plan
from psframe.memory.auto import Reach
from psframe.memory.auto import tiers as tiers_of
from psframe.memory.budget import Demand, Pool
from psframe.memory.role_placement import SHARED, Places
from psframe.memory.tensor_names import role_of, tensor_of
from psframe.memory.tier_options import UNHIDDEN, Item, Option, Tier, Window
from psframe.memory.tier_plan import Plan
from psframe.record.view import aligned
from psframe.train.assembly.sizes import Accesses, Sizes

#: share of the free memory that stays free: the kernel and others take some between the plan and the first touch
RESERVE = 1 / 32
MB = 10**6
MOVE_RATE = "what moves does so at {:.4g} GB/s on all ranks together, of which {:.1%} is taken to be hidden by compute"
#: account of a tensor that moves in a step, given the faster and the slower tier
MOVING = {"out": ", in {1} between passes", "in": ", in {0} for its passes"}


def arrange(cluster: Cluster, places: Places, sizes: Sizes, free: Mapping[Pool, int]) -> None:
    """Place the tensors of ``auto`` roles where a plan says. All ranks must call.

    Ranks with the same nearest memory have one plan, so that none of them waits for another's slower tensors.

    Raises
    ------
    AgreedError
        They do not fit into all tiers together.
    """
    if not places.asks_for_plan:
        return
    wish = _wish(places, sizes)
    by_rank = cluster.allgather((cluster.node, wish))
    wishes = [wish for node, wish in by_rank if node == cluster.node]
    plans = cluster.run_on_nodes(lambda: _plans([wish for wish in wishes if wish.reaches], free))
    if not places.auto:
        return
    places.plan = plans[wish.group]
    reaches = wish.reaches
    for place, weights in places.plan["chosen"].items():
        option = Option(tuple(weights))
        placement = places.auto[role_of(place)].chosen(places.site, reaches, option, place in SHARED)
        places.put(place, placement, "+".join(reaches[tier].name for tier in option.tiers))


@dataclass(frozen=True)
class Wish:
    """Memory that a rank wants placed by a plan.

    Attributes
    ----------
    reaches : list of Reach
        The tiers it can come from, the fastest first; none on a machine of one tier.
    n_bytes : dict of str to int
        Bytes by place, in whole pages.
    accesses : Accesses
    fixed : list of Demand
        Memory that is placed otherwise.
    most_mb : float or None
        Most MB of the fastest tier.
    splits : bool
    windows : dict of str to Window
        Phases of a step in which tensors are used, by place; none if nothing may move.
    move_gbps : float
        GB/s at which this rank may move pages in a step.
    """

    reaches: list[Reach]
    n_bytes: dict[str, int]
    accesses: Accesses
    fixed: list[Demand]
    most_mb: float | None
    splits: bool
    windows: Mapping[str, Window] = field(default_factory=dict)
    move_gbps: float = 0.0

    @property
    def group(self) -> str:
        """Key of the ranks that share memory: the nodes of their tiers."""
        return "; ".join(f"{reach.name} {sorted(reach.nodes)}" for reach in self.reaches)

    @property
    def total(self) -> int:
        """Bytes of all places."""
        return sum(self.n_bytes.values())


def _wish(places: Places, sizes: Sizes) -> Wish:
    """Return what this rank wants."""
    page = compiled.numa.PAGE_BYTES
    n_bytes = {place: -(-n // page) * page for place, n in sizes.by_place.items() if role_of(place) in places.auto}
    fixed = {place: n for place, n in sizes.by_place.items() if place not in n_bytes}
    settings = places.auto.values()
    of_activations = places.auto.get("activations")
    move_gbps = (of_activations.move_gbps if of_activations and sizes.windows else None) or 0.0
    return Wish(
        tiers_of(places.site, places.gbps) if places.auto else [],
        n_bytes,
        sizes.accesses,
        budget.demands(fixed, places.policies),
        min((placement.most_mb for placement in settings if placement.most_mb), default=None),
        all(placement.split for placement in settings),
        sizes.windows if move_gbps else {},
        move_gbps,
    )


def _plans(wishes: Sequence[Wish], free: Mapping[Pool, int]) -> dict[str, Any]:
    """Return the plan of each group of a node's ranks, as plain values."""
    taken = budget.spread([demand for wish in wishes for demand in wish.fixed], free)
    groups: dict[str, list[Wish]] = {}
    for wish in wishes:
        groups.setdefault(wish.group, []).append(wish)
    wanted = {key: sum(wish.total for wish in group) for key, group in groups.items()}
    by_node: Counter[int] = Counter()  # bytes of the groups that a NUMA node is shared by
    for key, group in groups.items():
        for node in {node for reach in group[0].reaches for node in reach.nodes}:
            by_node[node] += wanted[key]
    plans = {}
    for key, group in groups.items():
        tiers: list[Tier] = []
        for reach in group[0].reaches:
            share = {node: wanted[key] / max(1, by_node[node]) for node in reach.nodes}
            left = {node: free.get((node, 0), 0) - taken.get((node, 0), Counter()).total() for node in reach.nodes}
            room = sum(max(0, left[node]) * (1 - RESERVE) * share[node] for node in reach.nodes)
            if not tiers and group[0].most_mb:
                room = min(room, group[0].most_mb * MB * max(share.values()))
            tiers.append(Tier(reach.name, reach.gbps, int(room)))
        plans[key] = _plan(group, tiers, _items(group, wishes))
    return plans


def _items(group: Sequence[Wish], wishes: Sequence[Wish]) -> list[Item]:
    """Return the tensors of a group's ranks.

    All ranks of the node access what they share: a group has the part of these bytes that it has of the pages.
    """
    sizes, of_node, shared = Counter[str](), Counter[str](), dict[str, list[int]]()
    accesses = {place: [0, 0] for wish in group for place in wish.n_bytes}
    for wish in wishes:
        of_node.update(wish.n_bytes)
        for place, pair in wish.accesses.shared.items():
            shared[place] = [a + b for a, b in zip(shared.get(place, [0, 0]), pair, strict=True)]
    for wish in group:
        sizes.update(wish.n_bytes)
        for place in wish.n_bytes:
            own = wish.accesses.own.get(place, (0, 0))
            accesses[place] = [a + b for a, b in zip(accesses[place], own, strict=True)]
    for place, total in shared.items():
        if sizes[place]:
            part = sizes[place], of_node[place]
            accesses[place] = [a + b * part[0] // part[1] for a, b in zip(accesses[place], total, strict=True)]
    windows = _windows(group)
    return [Item(place, sizes[place], read, written, windows.get(place)) for place, (read, written) in accesses.items()]


def _windows(group: Sequence[Wish]) -> Mapping[str, Window]:
    """Return the windows of the ranks of a group that have any; none if these differ."""
    first, *others = [wish.windows for wish in group if wish.windows] or [{}]
    return first if all(other == first for other in others) else {}


def _plan(group: Sequence[Wish], tiers: Sequence[Tier], items: Sequence[Item]) -> dict[str, Any]:
    """Return the plan of ranks that share the tiers, with its account, as plain values."""
    rates = group[0].splits, sum(wish.move_gbps for wish in group)
    plan = tier_plan.best(items, tiers, *rates)
    if plan is None:
        raise UserError(
            f"tensors must fit into the memory of all tiers, got {sum(item.n_bytes for item in items):,} bytes for "
            f"{', '.join(f'{tier.name} {tier.n_bytes:,}' for tier in tiers)}; start fewer ranks, or lower "
            "train.batch_size"
        )
    more = tier_plan.best(items, [Tier(tiers[0].name, tiers[0].gbps, tiers[0].n_bytes + MB), *tiers[1:]], *rates)
    return {
        "chosen": {place: list(option.weights) for place, option in plan.chosen.items()},
        "moves": {place: option.moves for place, option in plan.chosen.items() if option.moves},
        "tiers": [[tier.name, tier.gbps, tier.n_bytes] for tier in tiers],
        "sources": sorted({reach.source for reach in group[0].reaches}),
        "nodes": {reach.name: list(reach.nodes) for reach in group[0].reaches},
        "move_gbps": rates[1],
        "items": [[item.place, item.n_bytes, item.read, item.written] for item in items],
        "seconds": plan.seconds,
        "by": plan.by,
        "distance": plan.distance,
        "mb_more_s": plan.seconds - more.seconds if more else 0.0,
        "others": _others(items, tiers, plan),
    }


def _others(items: Sequence[Item], tiers: Sequence[Tier], plan: Plan) -> dict[str, float]:
    """Return the modelled seconds of other placements of the same tensors."""
    fast, slow = tiers[0], next((tier for tier in tiers if tier.name == "ddr"), tiers[-1])
    moved, size = sum(item.moved for item in items), sum(item.n_bytes for item in items)
    left, preferred = fast.n_bytes, 0.0
    for item in items:  # in the order of allocation, while there is room
        share = min(1.0, left / item.n_bytes) if item.n_bytes else 1.0
        left -= int(item.n_bytes * share)
        preferred += item.moved * (share / fast.gbps + (1 - share) / slow.gbps) / 1e9
    hits = min(1.0, fast.n_bytes / size) if size else 1.0
    return {
        f"all {slow.name}": moved / slow.gbps / 1e9,
        f"{fast.name} while it lasts": preferred,
        f"{fast.name} as a cache": moved * (hits / fast.gbps + (1 - hits) * (1 / slow.gbps + 1 / fast.gbps)) / 1e9,
    }


def account(plan: Mapping[str, Any]) -> str:
    """Return the account of a plan: every tensor, and what the plan gains by the model."""
    names = [name for name, *_ in plan["tiers"]]
    lines = [["role", "tensor", "bytes", "read a step", "written", "tier"]]
    for place, n_bytes, read, written in plan["items"]:
        weights = plan["chosen"][place]
        used = [(name, weight) for name, weight in zip(names, weights, strict=True) if weight]
        tier = " : ".join(f"{name} {weight}" for name, weight in used) if len(used) > 1 else used[0][0]
        if kind := plan["moves"].get(place):
            tier += MOVING[kind].format(*(names[number] for number in Option(tuple(weights), moves=kind).pair))
        lines.append([role_of(place), tensor_of(place), f"{n_bytes:,}", f"{read:,}", f"{written:,}", tier])
    room = ", ".join(f"{name} {n:,} bytes at {gbps:.4g} GB/s" for name, gbps, n in plan["tiers"])
    optimal = "optimal" if not plan["distance"] else f"a better plan would save at most {plan['distance']:.1%}"
    gains = ", ".join(f"{name} {1e3 * seconds:.3f}" for name, seconds in plan["others"].items())
    return "\n".join(
        [
            "plan of auto for the ranks that share these tiers, by a model; nothing of it was measured",
            aligned(lines),
            f"room: {room} (bandwidths: {', '.join(plan['sources'])})",
            f"memory time of a step, in ms: {1e3 * plan['seconds']:.3f} ({plan['by']}, {optimal}); {gains}",
            *([MOVE_RATE.format(plan["move_gbps"], 1 - UNHIDDEN)] if plan["moves"] else []),
            f"one more MB of {names[0]} would save {1e6 * plan['mb_more_s']:.3f} us a step",
            *(f"{role} was spilled to ordinary memory, otherwise than planned" for role in plan.get("spilled", ())),
        ]
    )
