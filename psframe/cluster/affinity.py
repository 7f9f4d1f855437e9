"""Which cores each rank runs on, within what the launcher allows, and so which memory is near to it.

Nothing here imports NumPy: how many threads its BLAS may have is settled before that.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from mpi4py import MPI

from psframe.cluster import kernel
from psframe.memory import cgroups
from psframe.memory.sysfs import Tree
from psframe.memory.topology import Topology, read

if TYPE_CHECKING:
    from psframe.cluster.cluster import Cluster

Core = tuple[int, ...]  #: the CPUs (hardware threads) of a core

UNLIMITED = 1 << 30  # CPUs

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def assign(kind: str, topology: Topology, masks: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """Return the CPUs of each rank of a machine.

    Ranks that the launcher gave the same CPUs divide them; ranks that it bound to CPUs of their own keep those.

    Parameters
    ----------
    kind : {'numa', 'compact', 'scatter', 'none'}
        ``compact``: neighbouring ranks take neighbouring cores. ``scatter``: neighbouring ranks take cores of different
        NUMA nodes. ``numa``: as ``compact``, widened to the whole NUMA node, within which the kernel may move the rank.
        ``none``: all keep what they have. Where there are fewer cores than ranks, all are widened to their NUMA nodes.
    masks : sequence of sets of int
        What each rank may run on now, in the order of the ranks on the machine.
    """
    assigned = list(masks)
    if kind == "none":
        return assigned
    for mask in set(masks):
        sharers = [rank for rank, other in enumerate(masks) if other == mask]
        cores = [c for core in topology.cores if (c := tuple(cpu for cpu in core if cpu in mask))]
        if not cores:
            continue  # nothing is known of these CPUs
        cores.sort(key=lambda core: (_node(topology, core), core))
        parts = _scatter(topology, cores, len(sharers)) if kind == "scatter" else _blocks(cores, len(sharers))
        for rank, part in zip(sharers, parts, strict=True):
            if kind == "numa" or len(cores) < len(sharers):
                nodes = _most(topology, part, one=len({_node(topology, core) for core in cores}) <= len(sharers))
                part = [core for core in cores if _node(topology, core) in nodes]
            assigned[rank] = frozenset(cpu for core in part for cpu in core)
    return assigned


def _node(topology: Topology, core: Core) -> int:
    node = topology.node_of(core[0])
    return -1 if node is None else node


def _most(topology: Topology, part: Sequence[Core], one: bool) -> set[int]:
    """Return the NUMA nodes of some cores, or the ``one`` that has most of them, the first of equals."""
    counts = Counter(_node(topology, core) for core in part)
    return {counts.most_common(1)[0][0]} if one else set(counts)


def _blocks(cores: Sequence[Core], n: int) -> list[Sequence[Core]]:
    """Cut cores into ``n`` nearly equal parts in their order; one core each where there are fewer cores than parts."""
    return [cores[(at := len(cores) * i // n) : max(at + 1, len(cores) * (i + 1) // n)] for i in range(n)]


def _scatter(topology: Topology, cores: Sequence[Core], n: int) -> list[Sequence[Core]]:
    """Deal ``n`` parts to NUMA nodes in turn, to none more parts than it has cores while another has some left."""
    of_node: dict[int, list[Core]] = {}
    for core in cores:
        of_node.setdefault(_node(topology, core), []).append(core)
    dealt: dict[int, list[int]] = {node: [] for node in of_node}
    for number, node in zip(range(n), _turns(of_node), strict=False):
        dealt[node].append(number)
    parts: list[Sequence[Core]] = [()] * n
    for node, numbers in dealt.items():
        for number, part in zip(numbers, _blocks(of_node[node], len(numbers)), strict=True):
            parts[number] = part
    return parts


def _turns(of_node: Mapping[int, Sequence[Core]]) -> Iterator[int]:
    """Yield nodes in turn, each as often as it has cores, and then all over again."""
    while True:
        for turn in range(max(map(len, of_node.values()))):
            yield from (node for node, cores in of_node.items() if turn < len(cores))


def own(cluster: "Cluster", topology: Topology, kind: str) -> frozenset[int]:
    """Return the CPUs that would be this rank's. All ranks must call."""
    every = cluster.comm.allgather((cluster.node, frozenset(os.sched_getaffinity(0))))
    return assign(kind, topology, [mask for node, mask in every if node == cluster.node])[cluster.node_rank]


def pin(cluster: "Cluster", topology: Topology, kind: str) -> tuple[tuple[int, ...], str]:
    """Bind this rank and its threads; all ranks must call, before they take memory.

    Returns
    -------
    cpus : tuple of int
        What this rank runs on now.
    denied : str
        Why that is not what it was to be, or "".
    """
    cpus, denied = own(cluster, topology, kind), ""
    if cpus != os.sched_getaffinity(0):
        for thread in os.listdir("/proc/self/task"):  # BLAS has started its own
            try:
                os.sched_setaffinity(int(thread), cpus)
            except ProcessLookupError:
                continue  # it has ended
            except OSError as error:
                denied = f"sched_setaffinity is denied here ({error.strerror}), so ranks run where they were started"
                break
    return tuple(sorted(os.sched_getaffinity(0))), denied


def n_threads(topology: Topology, masks: Sequence[frozenset[int]], rank: int) -> int:
    """Return the cores that a rank has, those that several ranks may use divided among them; at least 1."""
    share = 0.0
    for core in topology.cores:
        if masks[rank].intersection(core):
            share += 1 / sum(1 for mask in masks if mask.intersection(core))
    return max(1, int(share + 1e-9))


def n_cores(cluster: "Cluster", topology: Topology) -> int:
    """Return how many cores the ranks of this node have together, by affinity and by their cgroups' quotas.

    All ranks must call.
    """
    every = cluster.comm.allgather((cluster.node, frozenset(os.sched_getaffinity(0)), cgroups.cpus(Tree("/"))))
    usable: frozenset[int] = frozenset().union(*(mask for node, mask, _ in every if node == cluster.node))
    allowed = int(sum(quotas([of_rank for node, _, of_rank in every if node == cluster.node])) + 1e-9)
    return max(1, min(topology.n_cores_of(usable), allowed))


def quotas(every: Sequence[Mapping[tuple[int, int], float]]) -> list[float]:
    """Return how many CPUs' time each rank of a machine is allowed; what a cgroup allows is divided among its ranks.

    Parameters
    ----------
    every : sequence of mapping
        What :func:`psframe.memory.cgroups.cpus` finds on each rank.

    Returns
    -------
    list of float
        A large number where there is no limit.
    """
    n_ranks = Counter(group for of_rank in every for group in of_rank)
    return [min([n / n_ranks[group] for group, n in of_rank.items()], default=UNLIMITED) for of_rank in every]


def allowed_threads() -> int:
    """Return how many threads this rank may start: the cores that :func:`limit_threads` found, or what the user set."""
    try:
        return max(1, int(os.environ.get(THREAD_VARIABLES[0], "1")))
    except ValueError:
        return 1  # OpenMP takes lists of numbers, too


def limit_threads(world: MPI.Comm) -> None:
    """Let BLAS, OpenMP and Numba start as many threads as this rank has cores, by affinity and cgroup.

    A user's own setting stands. All ranks must call, before NumPy is imported.
    """
    near = kernel.split(world)  # containers may run on the same cores
    every = near.gather((frozenset(os.sched_getaffinity(0)), cgroups.cpus(Tree("/"))))
    counts = None
    if every:
        topology = read("/", environ={})  # a mistake in a variable is told later, where all ranks can hear of it
        masks, allowed = [mask for mask, _ in every], quotas([of_rank for _, of_rank in every])
        counts = [max(1, min(n_threads(topology, masks, rank), int(allowed[rank] + 1e-9))) for rank in range(near.size)]
    threads = near.scatter(counts)
    near.Free()
    for name in THREAD_VARIABLES:
        os.environ.setdefault(name, str(threads))
