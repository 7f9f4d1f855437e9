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
from psframe.memory.tensor_names import role_of, tensor_of
from psframe.memory.topology import read
from psframe.record.view import aligned
from psframe.train import tier_places
from psframe.train.assembly.sizes import Sizes

ByRank = list[dict[str, Pages]]  #: each rank's pages by place


def fit(cluster: Cluster, places: Places, wanted: Sizes, settings: schema.Placement, trained: bool = False) -> str:
    """Place tensors, and spill roles in the order of ``settings.spill`` until everything fits.

    Return the table of requested bytes.

    The table covers this rank's node; it is "" if no NUMA node was requested. All ranks must call.

    Parameters
    ----------
    wanted : Sizes
        Bytes that this rank will allocate.
    trained : bool
        True if the rank has trained, so that the process's own memory is in use already.

    Raises
    ------
    AgreedError
        If it does not fit: with the table of the first machine that is too small, or has too small NUMA nodes.
    """
    sizes = wanted.by_place
    _settle(cluster, places, sizes)
    # reserved huge pages are not part of the available memory
    ordinary = {place: n for place, n in sizes.items() if not RESERVED_BYTES[places.policies[place].huge_pages]}
    check_room(cluster, ordinary if trained else {**ordinary, budget.PROCESS: budget.PROCESS_BYTES})
    topology = places.site.topology
    # read the free memory again: imports have allocated some since the topology was read
    rows = cluster.run_on_nodes(lambda: [[*pool, left] for pool, left in budget.free(read("/", environ={})).items()])
    free = {(node, size): left for node, size, left in rows}
    tier_places.arrange(cluster, places, wanted, free)
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


def _settle(cluster: Cluster, places: Places, sizes: Mapping[str, int]) -> None:
    """Place the tensors of roles by tensor. All ranks must call, since each may have other tensors."""
    if not places.asks_by_tensor:
        return
    tensors: dict[str, set[str]] = {}
    for of_rank in cluster.allgather([place for place in sizes if tensor_of(place)]):
        for place in of_rank:
            tensors.setdefault(role_of(place), set()).add(tensor_of(place))
    cluster.run_on_all(lambda: places.settle(tensors))


def check_room(cluster: Cluster, sizes: Mapping[str, int]) -> None:
    """Raise AgreedError if the ranks of a node need more memory than it has, or than their cgroups allow.

    Each limit is compared with the needs of the ranks under it: a job's cgroup has all ranks of a node, a task's or a
    container's some of them. All ranks must call.

    Parameters
    ----------
    sizes : mapping of str to int
        Bytes of ordinary pages that this rank will allocate, by place.
    """
    if not cluster.checks_memory:
        return
    needs_by_rank = cluster.allgather((cluster.node, budget.by_role(sizes), free_memory.rooms()))
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
    """Return every rank's pages by place on rank 0, None elsewhere. All ranks must call."""
    return cluster.gather(audit.count(blocks, places.policies))


def record(every: ByRank) -> dict[str, Any]:
    """Return ``pages``, by place and node over all ranks, and ``placed``, the worst rank's share that is as asked."""
    sums: dict[str, Pages] = {}
    shares: dict[str, list[float]] = {}
    for of_rank in every:
        for place, pages in of_rank.items():
            sums[place] = sums.get(place, Pages()) + pages
            if pages.share is not None:
                shares.setdefault(place, []).append(pages.share)
    return {
        "pages": {place: pages.to_plain() for place, pages in sums.items()},
        "placed": {place: min(of_place) for place, of_place in shares.items()},
    }


def verify(cluster: Cluster, places: Places, settings: schema.Placement, every: ByRank | None) -> list[str]:
    """Return a complaint about each misplaced role, on rank 0; with ``verify: error`` raise AgreedError instead.

    All ranks must call. ``every`` is the result of :func:`count`.
    """
    complaints: list[str] = []
    if settings.verify == "none":
        return complaints
    got = cluster.gather(places.got) or []
    wrong: set[str] = set()
    for rank, of_rank in enumerate(every or ()):
        for place, pages in of_rank.items():
            complaint = audit.complaint(place, got[rank][place], pages, settings.minimum)
            if complaint and role_of(place) not in wrong:
                wrong.add(role_of(place))
                complaints.append(f"{complaint} (on rank {rank})")

    def check() -> None:
        if complaints and settings.verify == "error":
            raise UserError("; ".join(complaints))

    cluster.run_on_root(check)
    return complaints


def summary(cluster: Cluster, places: Places) -> dict[str, str]:
    """Return the placement by place: the one requested, or the first that a rank got instead. All ranks must call."""
    placed_by_rank = cluster.allgather(places.summary())
    return {
        place: next((other for placed in placed_by_rank if (other := placed.get(place, name)) != name), name)
        for place, name in ((place, places.asked[place]) for place in places.all)
    }


def describe(cluster: Cluster, places: Places) -> list[dict[str, Any]] | None:
    """Return every rank's CPUs and the placement of its roles and tensors on rank 0, None elsewhere.

    All ranks must call.
    """
    roles = {
        place: {
            "asked": places.asked[place],
            "got": places.got[place],
            "mode": policy.mode,
            "nodes": list(policy.nodes),
            **({"weights": list(policy.weights)} if policy.weights else {}),
            "huge_pages": policy.huge_pages,
            **({"mixed_pages": n_mixed} if (n_mixed := places.mixed[place]) else {}),
        }
        for place, policy in ((place, places.policies[place]) for place in places.all)
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
