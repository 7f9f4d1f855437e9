"""Placement of ``auto`` roles by a plan (:func:`arrange`), one for all ranks that share memory, and its account."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from psframe import compiled
from psframe.cluster.cluster import Cluster
from psframe.errors import UserError
from psframe.memory import auto, budget, tier_plan
from psframe.memory.budget import Pool
from psframe.memory.role_placement import Places
from psframe.memory.tensor_names import role_of, tensor_of
from psframe.memory.tier_plan import Item, Option, Plan, Tier
from psframe.record.view import aligned
from psframe.train.build.sizes import Sizes

#: share of the free memory that stays free: the kernel and others take some between the plan and the first touch
RESERVE = 1 / 32
MB = 10**6


def arrange(cluster: Cluster, places: Places, sizes: Sizes, free: Mapping[Pool, int]) -> None:
    """Place the tensors of ``auto`` roles where a plan says. All ranks must call.

    Ranks with the same nearest memory have one plan, so that none of them waits for another's slower tensors.

    Raises
    ------
    AgreedError
        They do not fit into all tiers together.
    """
    if not places.auto:
        return
    page = compiled.numa.PAGE_BYTES
    planned = {place: -(-n // page) * page for place, n in sizes.by_place.items() if role_of(place) in places.auto}
    fixed = {place: n for place, n in sizes.by_place.items() if place not in planned}
    given = {tier: rate for placement in places.auto.values() for tier, rate in placement.gbps.items()}
    reaches = auto.tiers(places.site, given)
    mine: dict[str, Any] = {
        "tiers": [[reach.name, list(reach.nodes), reach.gbps, reach.source] for reach in reaches],
        "items": [[place, n_bytes, *sizes.moves.get(place, (0, 0))] for place, n_bytes in planned.items()],
        "most_mb": min((a.most_mb for a in places.auto.values() if a.most_mb), default=None),
        "splits": all(placement.split for placement in places.auto.values()),
    }
    by_rank = cluster.allgather((cluster.node, mine, budget.demands(fixed, places.policies)))
    on_node = [(told, demands) for node, told, demands in by_rank if node == cluster.node]
    plans = cluster.run_on_nodes(lambda: _plans(on_node, free))
    places.plan = plans[_group(mine["tiers"])]
    names = [str(name) for name, *_ in mine["tiers"]]
    for place, weights in places.plan["chosen"].items():
        option = Option(tuple(weights))
        placement = places.auto[role_of(place)].chosen(places.site, names, option)
        places.put(place, placement, "+".join(names[tier] for tier in option.tiers))


def _group(tiers: Sequence[Sequence[Any]]) -> str:
    """Return the key of the ranks that share memory: the nodes of their tiers."""
    return "; ".join(f"{name} {nodes}" for name, nodes, *_ in tiers)


def _plans(on_node: Sequence[tuple[Any, Any]], free: Mapping[Pool, int]) -> dict[str, Any]:
    """Return the plan of each group of a node's ranks, as plain values."""
    taken = budget.spread([demand for _, demands in on_node for demand in demands], free)
    groups: dict[str, list[Any]] = {}
    for told, _ in on_node:
        groups.setdefault(_group(told["tiers"]), []).append(told)
    wanted = {key: sum(item[1] for told in group for item in told["items"]) for key, group in groups.items()}
    by_node: Counter[int] = Counter()  # bytes of the groups that a NUMA node is shared by
    for key, group in groups.items():
        for node in {node for _, nodes, *_ in group[0]["tiers"] for node in nodes}:
            by_node[node] += wanted[key]
    plans = {}
    for key, group in groups.items():
        tiers = []
        for name, nodes, gbps, _ in group[0]["tiers"]:
            rooms = {node: free.get((node, 0), 0) - sum(taken.get((node, 0), {}).values()) for node in nodes}
            room = sum(max(0, n) * (1 - RESERVE) * wanted[key] / max(1, by_node[node]) for node, n in rooms.items())
            tiers.append(Tier(name, gbps, int(room)))
        if group[0]["most_mb"]:
            fast = tiers[0]
            tiers[0] = Tier(fast.name, fast.gbps, min(fast.n_bytes, int(group[0]["most_mb"] * MB)))
        plans[key] = _plan(group, tiers)
    return plans


def _plan(group: Sequence[Any], tiers: Sequence[Tier]) -> dict[str, Any]:
    """Return the plan of ranks that share the tiers, with its account, as plain values."""
    sums: dict[str, list[int]] = {}
    for told in group:
        for place, *numbers in told["items"]:
            sums[place] = [a + b for a, b in zip(sums.get(place, [0, 0, 0]), numbers, strict=True)]
    items, splits = [Item(place, *numbers) for place, numbers in sums.items()], group[0]["splits"]
    plan = tier_plan.best(items, tiers, splits)
    if plan is None:
        raise UserError(
            f"tensors must fit into the memory of all tiers, got {sum(item.n_bytes for item in items):,} bytes for "
            f"{', '.join(f'{tier.name} {tier.n_bytes:,}' for tier in tiers)}; start fewer ranks, or lower "
            "train.batch_size"
        )
    more = tier_plan.best(items, [Tier(tiers[0].name, tiers[0].gbps, tiers[0].n_bytes + MB), *tiers[1:]], splits)
    return {
        "chosen": {place: list(option.weights) for place, option in plan.chosen.items()},
        "tiers": [[tier.name, tier.gbps, tier.n_bytes] for tier in tiers],
        "sources": sorted({source for *_, source in group[0]["tiers"]}),
        "nodes": {name: nodes for name, nodes, *_ in group[0]["tiers"]},
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
        lines.append([role_of(place), tensor_of(place), f"{n_bytes:,}", f"{read:,}", f"{written:,}", tier])
    room = ", ".join(f"{name} {n:,} bytes at {gbps:.4g} GB/s" for name, gbps, n in plan["tiers"])
    optimal = "optimal" if not plan["distance"] else f"at most {plan['distance']:.1%} above the optimum"
    gains = ", ".join(f"{name} {1e3 * seconds:.3f}" for name, seconds in plan["others"].items())
    return "\n".join(
        [
            "plan of auto for the ranks that share these tiers, by a model; nothing of it was measured",
            aligned(lines),
            f"room: {room} (bandwidths: {', '.join(plan['sources'])})",
            f"memory time of a step, in ms: {1e3 * plan['seconds']:.3f} ({plan['by']}, {optimal}); {gains}",
            f"one more MB of {names[0]} would save {1e6 * plan['mb_more_s']:.3f} us a step",
        ]
    )
