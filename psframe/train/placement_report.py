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
    rows = cluster.run_on_nodes(lambda: [[*pool, left] for pool, left in budget.free(read("/", environ={})).items()])
    free = {(node, size): left for node, size, left in rows}
    full: list[tuple[list[str], str]] = [(list(sizes), "")]
    for role in (None, *settings.spill):
        if role and not any(role in roles for roles, _ in full):
            continue  # spilling it frees nothing on the full nodes
        if role:
            places.spill(role)
        own_demands = budget.demands(sizes, places.policies)
        demands_by_rank = cluster.allgather((cluster.node, own_demands))
        on_node = [demand for node, demands in demands_by_rank if node == cluster.node for demand in demands]
        demand_by_pool = budget.spread(on_node, free)
        table = aligned(budget.table(demand_by_pool, free, topology)) if demand_by_pool else ""
        roles = [role for pool in budget.too_small(demand_by_pool, free) for role in +demand_by_pool[pool]]
        full = [entry for entry in cluster.allgather((roles, table)) if entry[0]]
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
    needs_by_rank = cluster.allgather((cluster.node, dict(sizes), free_memory.rooms()))
    for node in range(cluster.n_nodes):
        wanted = [rank_sizes for rank_node, rank_sizes, _ in needs_by_rank if rank_node == node]
        sums = [sum(rank_sizes.values()) for rank_sizes in wanted]
        overdraft = free_memory.overdrawn(sums, [rooms for rank_node, _, rooms in needs_by_rank if rank_node == node])
        if overdraft is None:
            continue
        exceeded, under = overdraft
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
    return cluster.gather(audit.count(blocks, places.policies))


def record(every: ByRank) -> dict[str, Any]:
    """Return ``pages``, by role and node over all ranks, and ``placed``, the worst rank's share placed as requested."""
    pages: dict[str, Pages] = {}
    shares: dict[str, list[float]] = {}
    for pages_by_role in every:
        for role, role_pages in pages_by_role.items():
            pages[role] = pages.get(role, Pages()) + role_pages
            if role_pages.share is not None:
                shares.setdefault(role, []).append(role_pages.share)
    return {
        "pages": {role: role_pages.to_plain() for role, role_pages in pages.items()},
        "placed": {role: min(of_role) for role, of_role in shares.items()},
    }


def verify(cluster: Cluster, places: Places, settings: schema.Placement, every: ByRank | None) -> list[str]:
    """Return complaints about misplaced roles, on rank 0; with ``verify: error`` raise AgreedError instead.

    All ranks must call. ``every`` is the result of :func:`count`.
    """
    complaints: list[str] = []
    if settings.verify == "none":
        return complaints
    for rank, pages_by_role in enumerate(every or ()):
        for role, role_pages in pages_by_role.items():
            complaint = audit.complaint(role, places.got[role], role_pages, settings.minimum)
            if complaint and not any(earlier.startswith(f"placement.{role}=") for earlier in complaints):
                complaints.append(f"{complaint} (on rank {rank})")

    def check() -> None:
        if complaints and settings.verify == "error":
            raise UserError("; ".join(complaints))

    cluster.run_on_root(check)
    return complaints


def summary(cluster: Cluster, places: Places) -> dict[str, str]:
    """Return each role's placement: the one requested, or the first that a rank got instead. All ranks must call."""
    placed_by_rank = cluster.allgather(places.summary())
    return {
        role: next((placed[role] for placed in placed_by_rank if placed[role] != name), name)
        for role, name in places.asked.items()
    }


def describe(cluster: Cluster, places: Places) -> list[dict[str, Any]] | None:
    """Return every rank's CPUs and its roles' placements on rank 0, None elsewhere. All ranks must call."""
    roles = {
        role: {
            "asked": places.asked[role],
            "got": places.got[role],
            "mode": policy.mode,
            "nodes": list(policy.nodes),
            **({"weights": list(policy.weights)} if policy.weights else {}),
            "huge_pages": policy.huge_pages,
        }
        for role, policy in places.policies.items()
    }
    site = places.site
    return cluster.gather(
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
