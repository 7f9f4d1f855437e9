"""Memory budget of a machine's ranks (:func:`spread`): demand and free bytes by NUMA node, before any allocation."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from psframe.config.placement_spec import ROLES
from psframe.memory.pages import RESERVED_BYTES, Policy
from psframe.memory.tensor_names import role_of
from psframe.memory.topology import Topology

#: memory of a training rank outside its roles: compiled layers, threads and MPI; 10 to 25 MB were measured
PROCESS = "process"
PROCESS_BYTES = 32 << 20

#: a NUMA node, and a size of reserved huge pages in bytes, 0 for ordinary pages
Pool = tuple[int, int]


@dataclass(frozen=True)
class Demand:
    """Memory demand of one role, or of a tensor of it, on one rank."""

    role: str
    n_bytes: int
    policy: Policy

    @property
    def strict(self) -> bool:
        """True if the memory must come from the requested nodes, or from reserved huge pages."""
        reserved = RESERVED_BYTES[self.policy.huge_pages]
        return self.n_bytes > 0 and (self.policy.mode in ("bind", "interleave", "weighted") or reserved > 0)


def demands(sizes: Mapping[str, int], policies: Mapping[str, Policy]) -> list[Demand]:
    """Return the demands of one rank, rounded up to pages; both arguments are by place."""
    rounded = []
    for place, n_bytes in sizes.items():
        page_bytes = policies[place].page_bytes
        rounded.append(Demand(role_of(place), -(-n_bytes // page_bytes) * page_bytes, policies[place]))
    return rounded


def by_role(sizes: Mapping[str, int]) -> dict[str, int]:
    """Return bytes by role from those by place."""
    sums: Counter[str] = Counter()
    for place, n_bytes in sizes.items():
        sums[role_of(place)] += n_bytes
    return dict(sums)


def free(topology: Topology) -> dict[Pool, int]:
    """Return the bytes that can be allocated now, by pool."""
    usable = [node for node in topology.nodes if node.allowed]
    pools = {(node.number, 0): node.free_bytes for node in usable}
    for node in usable:
        pools |= {(node.number, size): n_free * size for size, (_, n_free) in node.huge_pages.items()}
    return pools


def spread(wanted: Iterable[Demand], room: Mapping[Pool, int]) -> dict[Pool, Counter[str]]:
    """Return the bytes by pool and role, as the kernel would allocate them.

    Interleaved memory takes an equal part of each node, or one in proportion to its weight. Bound memory fills its
    nodes in order; reserved huge pages that are not bound fill all nodes, their preferred ones first. Bytes that fit
    nowhere are counted on the first node, so that the shortage shows. Demands that are not :attr:`Demand.strict` are
    not counted.
    """
    taken: dict[Pool, Counter[str]] = defaultdict(Counter)
    everywhere = sorted({node for node, _ in room})
    order = {"interleave": 0, "weighted": 0, "bind": 1}  # the least flexible first
    strict = sorted((d for d in wanted if d.strict), key=lambda d: (order.get(d.policy.mode, 2), len(d.policy.nodes)))
    for demand in strict:
        nodes, size = demand.policy.nodes, RESERVED_BYTES[demand.policy.huge_pages]
        if demand.policy.mode in ("interleave", "weighted"):
            weights = demand.policy.weights or (1,) * len(nodes)
            for node, weight in zip(nodes, weights, strict=True):
                taken[node, size][demand.role] += demand.n_bytes * weight // sum(weights)
            continue
        if demand.policy.mode != "bind":
            nodes = (*nodes, *(node for node in everywhere if node not in nodes))
        rest = demand.n_bytes
        for node in nodes:
            part = min(rest, max(0, room.get((node, size), 0) - taken[node, size].total()))
            taken[node, size][demand.role] += part
            rest -= part
        taken[nodes[0], size][demand.role] += rest
    return {pool: taken[pool] for pool in sorted(taken) if taken[pool].total()}


def too_small(taken: Mapping[Pool, Counter[str]], room: Mapping[Pool, int]) -> list[Pool]:
    """Return the pools with more bytes wanted than free."""
    return [pool for pool, by_role in taken.items() if by_role.total() > room.get(pool, 0)]


def table(taken: Mapping[Pool, Counter[str]], room: Mapping[Pool, int], topology: Topology) -> list[list[str]]:
    """Return the cells of a table of wanted and free bytes by NUMA node and role; the first row is the heading."""
    roles = [role for role in ROLES if any(by_role[role] for by_role in taken.values())]
    rows = [["node", "tier", *roles, "wanted", "free", ""]]
    for pool, by_role in taken.items():
        node, size = pool
        wanted, left = by_role.total(), room.get(pool, 0)
        numbers = [f"{n:,}" for n in [*(by_role[role] for role in roles), wanted, left]]
        pages = f" ({size >> 10} kB pages)" if size else ""
        rows.append([f"{node}{pages}", str(topology.node(node).tier), *numbers, "too small" if wanted > left else ""])
    return rows


def table_by_role(sizes: Sequence[Mapping[str, int]], left: int) -> list[list[str]]:
    """Return the cells of a table of wanted bytes by role and of free bytes; the first row is the heading.

    Columns: role, number of ranks that want any, largest demand of a rank, demand of all ranks.
    """
    rows = [["role", "ranks", "most of a rank", "all ranks"]]
    for role in (*ROLES, PROCESS):
        of_role = [n_bytes for of_rank in sizes if (n_bytes := of_rank.get(role, 0))]
        if of_role:
            rows.append([role, str(len(of_role)), f"{max(of_role):,}", f"{sum(of_role):,}"])
    totals = [sum(of_rank.values()) for of_rank in sizes]
    rows.append(["wanted", str(len(totals)), f"{max(totals, default=0):,}", f"{sum(totals):,}"])
    return [*rows, ["free", "", "", f"{left:,}"]]
