"""Where the memory of a run lies: agreed before any of it is taken, shown by the kernel afterwards."""

from collections.abc import Mapping
from typing import Any

from psframe.cluster.cluster import AgreedError, Cluster
from psframe.config import schema
from psframe.errors import UserError
from psframe.memory import audit, budget, free_memory
from psframe.memory.audit import Pages
from psframe.memory.pages import RESERVED_BYTES
from psframe.memory.role_placement import Places
from psframe.memory.sysfs import spell
from psframe.memory.topology import read
from psframe.record.view import aligned

ByRank = list[dict[str, Pages]]  #: each rank's pages by role


def fit(
    cluster: Cluster, places: Places, sizes: Mapping[str, int], settings: schema.Placement, trained: bool = False
) -> str:
    """Spill roles in the order of ``settings.spill`` until everything fits; return the table of what is wanted.

    The table is that of this rank's node, "" where nothing was asked of any NUMA node. All ranks must call.

    Parameters
    ----------
    sizes : mapping of str to int
        Bytes that this rank will take, by role.
    trained : bool
        Whether it has trained, and so taken what it takes beside its roles.

    Raises
    ------
    AgreedError
        Where it does not fit: with the table of the first machine that is too small, or whose NUMA nodes are.
    """
    # huge pages that have been reserved are no part of what is available
    ordinary = {role: n for role, n in sizes.items() if not RESERVED_BYTES[places.policies[role].huge_pages]}
    judge_room(cluster, ordinary if trained else {**ordinary, budget.PROCESS: budget.PROCESS_BYTES})
    topology = places.site.topology
    # what is free now: since the topology was read, imports have taken some
    now = cluster.agree_by_node(lambda: [[*pool, left] for pool, left in budget.free(read("/", environ={})).items()])
    free = {(node, size): left for node, size, left in now}
    full: list[tuple[list[str], str]] = [(list(sizes), "")]
    for role in (None, *settings.spill):
        if role and not any(role in roles for roles, _ in full):
            continue  # it would make no room where room is wanted
        if role:
            places.spill(role)
        own = budget.demands(sizes, places.policies)
        every = cluster.comm.allgather((cluster.node, own))
        on_node = [demand for node, of_rank in every if node == cluster.node for demand in of_rank]
        taken = budget.spread(on_node, free)
        table = aligned(budget.table(taken, free, topology)) if taken else ""
        roles = [role for pool in budget.too_small(taken, free) for role in +taken[pool]]
        full = [found for found in cluster.comm.allgather((roles, table)) if found[0]]
        if not full:
            return table
    spilled = f" with {', '.join(settings.spill)} spilled" if settings.spill else ""
    raise AgreedError(
        f"memory must fit on the NUMA nodes it was asked for on, got too little{spilled}; place fewer roles there, "
        "start fewer ranks, reserve huge pages if it wants those, or let roles go to ordinary memory with, say, "
        "placement.spill=[optimizer, gradients] (bytes that the ranks of a machine want, by NUMA node):",
        full[0][1],
    )


def judge_room(cluster: Cluster, sizes: Mapping[str, int]) -> None:
    """AgreedError where the ranks of a node want more memory than it has, or than cgroups allow them, wherever it lies.

    Each limit is held against what the ranks under it want: a job's group has all of a node, a task's or a container's
    has some. All ranks must call.

    Parameters
    ----------
    sizes : mapping of str to int
        Bytes of ordinary pages that this rank will take, by role.
    """
    every = cluster.comm.allgather((cluster.node, dict(sizes), free_memory.rooms()))
    for node in range(cluster.n_nodes):
        wanted = [of_rank for of_node, of_rank, _ in every if of_node == node]
        sums = [sum(of_rank.values()) for of_rank in wanted]
        found = free_memory.overdrawn(sums, [rooms for of_node, _, rooms in every if of_node == node])
        if found is None:
            continue
        exceeded, under = found
        where = f" (on {cluster.hosts[node]})" if cluster.n_nodes > 1 else ""
        who = "they" if len(under) == len(wanted) else f"{len(under)} of them"
        raise AgreedError(
            f"the ranks of a node must fit into its memory, {who} want {sum(sums[rank] for rank in under):,} "
            f"bytes, got {exceeded}{where}; "
            f"{'raise that limit (sbatch --mem, docker --memory), ' if exceeded.limit else ''}lower train.batch_size "
            "or start fewer ranks (bytes that they want, by role):",
            aligned(budget.table_by_role([wanted[rank] for rank in under], exceeded.left)),
        )


def count(cluster: Cluster, places: Places, blocks: audit.Blocks) -> ByRank | None:
    """Return every rank's pages by role on rank 0, elsewhere None. All ranks must call."""
    return cluster.comm.gather(audit.count(blocks, places.policies))


def record(every: ByRank) -> dict[str, Any]:
    """Return ``pages``, by role and node over all ranks, and ``placed``, the worst rank's share as asked for."""
    pages: dict[str, Pages] = {}
    shares: dict[str, list[float]] = {}
    for of_rank in every:
        for role, found in of_rank.items():
            pages[role] = pages.get(role, Pages()) + found
            if found.share is not None:
                shares.setdefault(role, []).append(found.share)
    return {
        "pages": {role: found.to_plain() for role, found in pages.items()},
        "placed": {role: min(of_role) for role, of_role in shares.items()},
    }


def verify(cluster: Cluster, places: Places, settings: schema.Placement, every: ByRank | None) -> list[str]:
    """Return what is elsewhere than it was asked for, on rank 0; under ``verify: error`` an AgreedError instead.

    All ranks must call. ``every`` is what :func:`count` returned.
    """
    complaints: list[str] = []
    if settings.verify == "none":
        return complaints
    for rank, of_rank in enumerate(every or ()):
        for role, found in of_rank.items():
            wrong = audit.complaint(role, places.got[role], found, settings.minimum)
            if wrong and not any(said.startswith(f"placement.{role}=") for said in complaints):
                complaints.append(f"{wrong} (on rank {rank})")

    def judge() -> None:
        if complaints and settings.verify == "error":
            raise UserError("; ".join(complaints))

    cluster.agree(judge)
    return complaints


def summary(cluster: Cluster, places: Places) -> dict[str, str]:
    """Return what each role was asked to be, and has become on any rank. All ranks must call."""
    every = cluster.comm.allgather(places.summary())
    return {role: next((of[role] for of in every if of[role] != name), name) for role, name in places.asked.items()}


def describe(cluster: Cluster, places: Places) -> list[dict[str, Any]] | None:
    """Return where every rank runs and what each of its roles was asked to be, on rank 0. All ranks must call."""
    roles = {
        role: {
            "asked": places.asked[role],
            "got": places.got[role],
            "mode": policy.mode,
            "nodes": list(policy.nodes),
            "huge_pages": policy.huge_pages,
        }
        for role, policy in places.policies.items()
    }
    site = places.site
    return cluster.comm.gather(
        {
            "rank": cluster.rank,
            "node": cluster.node,
            "host": cluster.hosts[cluster.node],
            "cpus": spell(site.cpus),
            "numa_node": site.home,
            "roles": roles,
            "notes": site.notes,
        }
    )
