"""Placement of a run's memory: fitted before any is allocated (:func:`fit`), checked afterwards (:func:`verify`)."""

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
    """Spill roles in the order of ``settings.spill`` until everything fits; return the table of requested bytes.

    The table covers this rank's node; it is "" if no NUMA node was requested. All ranks must call.

    Parameters
    ----------
    sizes : mapping of str to int
        Bytes that this rank will allocate, by role.
    trained : bool
        True if the rank has trained, so that the process's own memory is in use already.

    Raises
    ------
    AgreedError
        If it does not fit: with the table of the first machine that is too small, or has too small NUMA nodes.
    """
    # reserved huge pages are not part of the available memory
    ordinary = {role: n for role, n in sizes.items() if not RESERVED_BYTES[places.policies[role].huge_pages]}
    check_room(cluster, ordinary if trained else {**ordinary, budget.PROCESS: budget.PROCESS_BYTES})
    topology = places.site.topology
    # read the free memory again: imports have allocated some since the topology was read
    now = cluster.run_on_nodes(lambda: [[*pool, left] for pool, left in budget.free(read("/", environ={})).items()])
    free = {(node, size): left for node, size, left in now}
    full: list[tuple[list[str], str]] = [(list(sizes), "")]
    for role in (None, *settings.spill):
        if role and not any(role in roles for roles, _ in full):
            continue  # spilling it frees nothing on the full nodes
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


def check_room(cluster: Cluster, sizes: Mapping[str, int]) -> None:
    """Raise AgreedError if the ranks of a node need more memory than it has, or than their cgroups allow.

    Each limit is compared with the needs of the ranks under it: a job's cgroup has all ranks of a node, a task's or a
    container's some of them. All ranks must call.

    Parameters
    ----------
    sizes : mapping of str to int
        Bytes of ordinary pages that this rank will allocate, by role.
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
    """Return every rank's pages by role on rank 0, None elsewhere. All ranks must call."""
    return cluster.comm.gather(audit.count(blocks, places.policies))


def record(every: ByRank) -> dict[str, Any]:
    """Return ``pages``, by role and node over all ranks, and ``placed``, the worst rank's share placed as requested."""
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
    """Return complaints about misplaced roles, on rank 0; with ``verify: error`` raise AgreedError instead.

    All ranks must call. ``every`` is the result of :func:`count`.
    """
    complaints: list[str] = []
    if settings.verify == "none":
        return complaints
    for rank, of_rank in enumerate(every or ()):
        for role, found in of_rank.items():
            wrong = audit.complaint(role, places.got[role], found, settings.minimum)
            if wrong and not any(said.startswith(f"placement.{role}=") for said in complaints):
                complaints.append(f"{wrong} (on rank {rank})")

    def check() -> None:
        if complaints and settings.verify == "error":
            raise UserError("; ".join(complaints))

    cluster.run_on_root(check)
    return complaints


def summary(cluster: Cluster, places: Places) -> dict[str, str]:
    """Return each role's placement: the one requested, or the first that a rank got instead. All ranks must call."""
    every = cluster.comm.allgather(places.summary())
    return {role: next((of[role] for of in every if of[role] != name), name) for role, name in places.asked.items()}


def describe(cluster: Cluster, places: Places) -> list[dict[str, Any]] | None:
    """Return every rank's CPUs and its roles' placements on rank 0, None elsewhere. All ranks must call."""
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
