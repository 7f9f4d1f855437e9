"""Report of ``--dry-run`` (:func:`report`): resolved config, and memory as the allocating code itself sizes it."""

from typing import Any

from psframe.cluster.cluster import Cluster
from psframe.config.schema import to_yaml
from psframe.memory import budget
from psframe.memory.sysfs import spell
from psframe.memory.tensor_names import role_of, tensor_of
from psframe.record.view import aligned
from psframe.train import placement_report, tier_places
from psframe.train.assembly.assemble import planned
from psframe.train.plan.plan import Plan


def report(cluster: Cluster, plan: Plan) -> str:
    """Build every part without reading data or touching memory; return the report on rank 0, elsewhere "".

    All ranks must call. Raises AgreedError if the memory would not fit.
    """
    sizes = planned(cluster, plan)
    node_table = placement_report.fit(cluster, plan.places, sizes, plan.config.placement)
    by_rank = cluster.gather(sizes.by_place)
    ranks = placement_report.describe(cluster, plan.places)
    if by_rank is None or ranks is None:
        return ""
    unused = "".join(f"# not used by this choice: {key}\n" for key in plan.unused)
    notes = "".join(f"# {note}\n" for note in dict.fromkeys(note for details in ranks for note in details["notes"]))
    by_role = [budget.by_role(of_rank) for of_rank in by_rank]
    tables = [memory_table(by_role, [kind(plan, rank) for rank in range(len(by_rank))]), places_table(ranks)]
    if plan.places.by_tensor:
        tables.append(tensors_table(by_rank, ranks))
    if plan.places.asks_for_plan and not plan.places.plan:
        tier = next(iter({node.tier for node in plan.places.site.topology.nodes if node.tier}), "one kind")
        tables.append(f"auto places nothing here: all memory of this machine is {tier}")
    if plan.places.plan:
        tables.append(tier_places.account(plan.places.plan))
    if node_table:
        tables.append(f"bytes asked of each NUMA node by the ranks of rank 0's machine\n{node_table}")
    return f"{to_yaml(plan.resolved)}{unused}{notes}\n" + "\n\n".join(tables)


def memory_table(roles: list[dict[str, int]], kinds: list[str]) -> str:
    """Return bytes by rank and role as a table, with one line for consecutive ranks of equal kind and sizes."""
    columns = sorted({role for bytes_by_role in roles for role, n_bytes in bytes_by_role.items() if n_bytes})
    lines = [["ranks", "", *columns, "total"]]
    first = 0
    for end in range(1, len(roles) + 1):
        if end < len(roles) and (roles[end], kinds[end]) == (roles[first], kinds[first]):
            continue
        sizes = [roles[first].get(column, 0) for column in columns]
        span = str(first) if end == first + 1 else f"{first}-{end - 1}"
        lines.append([span, kinds[first], *(f"{n_bytes:,}" for n_bytes in [*sizes, sum(sizes)])])
        first = end
    return f"bytes by rank and role (a node's data are counted on its first rank)\n{aligned(lines)}"


def kind(plan: Plan, rank: int) -> str:
    """Return a rank's kind: server, worker or both; or its stage and shard of a partitioned network."""
    grid = plan.grid
    if plan.config.parallel.is_cut:
        stage, shard = rank // grid.n_shards % grid.n_stages, rank % grid.n_shards
        labels = ((f"stage {stage}", grid.n_stages), (f"shard {shard}", grid.n_shards))
        return ", ".join(label for label, n in labels if n > 1)
    return ", ".join(["server"] * (rank in plan.team.servers) + ["worker"] * (rank in plan.team.workers))


def places_table(ranks: list[dict[str, Any]]) -> str:
    """Return the table of each rank's CPUs and of its roles' placement, with NUMA nodes if requested."""
    roles = [place for place in ranks[0]["roles"] if not tensor_of(place)]
    lines = [["rank", "node", "cpus", "NUMA node", *roles]]
    for details in ranks:
        cells = [str(details[key]) for key in ("rank", "node", "cpus", "numa_node")]
        apart = {role_of(place) for place in details["roles"] if tensor_of(place)}
        placed = ((role, details["roles"][role]) for role in roles)
        names = ("by tensor" if role in apart else f"{p['got']} {spell(p['nodes'])}".rstrip() for role, p in placed)
        lines.append([*cells, *names])
    return f"CPUs and placement by rank\n{aligned(lines)}"


def tensors_table(sizes: list[dict[str, int]], ranks: list[dict[str, Any]]) -> str:
    """Return the table of the tensors of roles by tensor: their placement, and their bytes on all ranks."""
    lines = [["role", "tensor", "placement", "ranks", "most of a rank", "all ranks"]]
    for place in dict.fromkeys(place for rank in ranks for place in rank["roles"]):
        of_ranks = [n_bytes for of_rank in sizes if (n_bytes := of_rank.get(place, 0))]
        if tensor_of(place) and not of_ranks:
            lines.append([role_of(place), tensor_of(place), "beside others", "0", "0", "0"])
        elif tensor := tensor_of(place):
            owners = [rank for rank, of_rank in zip(ranks, sizes, strict=True) if of_rank.get(place)]
            got = dict.fromkeys(rank["roles"][place]["got"] for rank in owners)
            cells = [role_of(place), tensor, ", ".join(got), str(len(of_ranks))]
            lines.append([*cells, f"{max(of_ranks):,}", f"{sum(of_ranks):,}"])
    return f"placement and bytes by tensor\n{aligned(lines)}"
