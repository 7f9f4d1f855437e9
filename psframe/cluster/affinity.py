"""CPU affinity of ranks (:func:`pin`): each rank's cores, within the launcher's limits, and so its near memory.

This module does not import NumPy: the number of its BLAS threads is set before (:func:`limit_threads`).
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING

from mpi4py import MPI

from psframe.cluster.nodes import split_by_kernel
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

    Ranks that the launcher gave the same CPUs divide them; ranks that it bound to separate CPUs keep those.

    Parameters
    ----------
    kind : {'numa', 'compact', 'scatter', 'none'}
        ``compact``: neighbouring ranks get neighbouring cores. ``scatter``: neighbouring ranks get cores of different
        NUMA nodes. ``numa``: as ``compact``, widened to the full NUMA node, within which the kernel may move the rank.
        ``none``: every rank keeps its mask. With fewer cores than ranks, all are widened to their NUMA nodes.
    masks : sequence of sets of int
        CPUs that each rank may run on now, in rank order on the machine.
    """
    assigned = list(masks)
    if kind == "none":
        return assigned
    for mask in set(masks):
        sharers = [rank for rank, other in enumerate(masks) if other == mask]
        cores = [c for core in topology.cores if (c := tuple(cpu for cpu in core if cpu in mask))]
        if not cores:
            continue  # the topology does not list these CPUs
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
    """Return the NUMA nodes of ``part``; with ``one``, only the node of most of its cores, the first of equals."""
    counts = Counter(_node(topology, core) for core in part)
    return {counts.most_common(1)[0][0]} if one else set(counts)


def _blocks(cores: Sequence[Core], n: int) -> list[Sequence[Core]]:
    """Cut ``cores`` into ``n`` nearly equal consecutive parts; one core each if there are fewer cores than parts."""
    return [cores[(at := len(cores) * i // n) : max(at + 1, len(cores) * (i + 1) // n)] for i in range(n)]


def _scatter(topology: Topology, cores: Sequence[Core], n: int) -> list[Sequence[Core]]:
    """Deal ``n`` parts to the NUMA nodes in turn; skip a node with a part per core while another has cores left."""
    cores_of_node: dict[int, list[Core]] = {}
    for core in cores:
        cores_of_node.setdefault(_node(topology, core), []).append(core)
    numbers_of_node: dict[int, list[int]] = {node: [] for node in cores_of_node}
    for number, node in zip(range(n), _turns(cores_of_node), strict=False):
        numbers_of_node[node].append(number)
    parts: list[Sequence[Core]] = [()] * n
    for node, numbers in numbers_of_node.items():
        for number, part in zip(numbers, _blocks(cores_of_node[node], len(numbers)), strict=True):
            parts[number] = part
    return parts


def _turns(of_node: Mapping[int, Sequence[Core]]) -> Iterator[int]:
    """Yield nodes in turn, each as often as it has cores, and start again."""
    while True:
        for turn in range(max(map(len, of_node.values()))):
            yield from (node for node, cores in of_node.items() if turn < len(cores))


def own(cluster: "Cluster", topology: Topology, kind: str) -> frozenset[int]:
    """Return the CPUs that :func:`pin` would give this rank. All ranks must call."""
    by_rank = cluster.allgather((cluster.node, frozenset(os.sched_getaffinity(0))))
    return assign(kind, topology, [mask for node, mask in by_rank if node == cluster.node])[cluster.node_rank]


def pin(cluster: "Cluster", topology: Topology, kind: str) -> tuple[tuple[int, ...], str]:
    """Bind this rank and its threads to its CPUs. All ranks must call, before they allocate memory.

    Returns
    -------
    cpus : tuple of int
        CPUs that this rank runs on now.
    denied : str
        The reason if the binding was denied, else "".
    """
    denied = bind(own(cluster, topology, kind))
    return tuple(sorted(os.sched_getaffinity(0))), denied


def bind(cpus: Set[int]) -> str:
    """Let all threads of this process run on ``cpus``; return the reason if that was denied, else ""."""
    if cpus == os.sched_getaffinity(0):
        return ""
    for thread in os.listdir("/proc/self/task"):  # BLAS has already started threads
        try:
            os.sched_setaffinity(int(thread), cpus)
        except ProcessLookupError:
            continue  # the thread has ended
        except OSError as error:
            return f"sched_setaffinity is denied here ({error.strerror}), so ranks run where they were started"
    return ""


def n_threads(topology: Topology, masks: Sequence[frozenset[int]], rank: int) -> int:
    """Return the number of cores of a rank, with cores that several ranks may use divided among them; at least 1."""
    share = 0.0
    for core in topology.cores:
        if masks[rank].intersection(core):
            share += 1 / sum(1 for mask in masks if mask.intersection(core))
    return max(1, int(share + 1e-9))


def n_cores(cluster: "Cluster", topology: Topology) -> int:
    """Return the number of cores of this node's ranks together, by affinity and by their cgroups' quotas.

    All ranks must call.
    """
    by_rank = cluster.allgather((cluster.node, frozenset(os.sched_getaffinity(0)), cgroups.cpus(Tree("/"))))
    usable: frozenset[int] = frozenset().union(*(mask for node, mask, _ in by_rank if node == cluster.node))
    allowed = int(sum(quotas([of_rank for node, _, of_rank in by_rank if node == cluster.node])) + 1e-9)
    return max(1, min(topology.n_cores_of(usable), allowed))


def quotas(every: Sequence[Mapping[tuple[int, int], float]]) -> list[float]:
    """Return the CPU time, in CPUs, allowed to each rank of a machine; a cgroup's quota is divided among its ranks.

    Parameters
    ----------
    every : sequence of mapping
        Result of :func:`psframe.memory.cgroups.cpus` on each rank.

    Returns
    -------
    list of float
        ``UNLIMITED`` if there is no limit.
    """
    n_ranks = Counter(group for of_rank in every for group in of_rank)
    return [min([n / n_ranks[group] for group, n in of_rank.items()], default=UNLIMITED) for of_rank in every]


def allowed_threads() -> int:
    """Return the number of threads this rank may start: the user's setting, or the cores by :func:`limit_threads`."""
    try:
        return max(1, int(os.environ.get(THREAD_VARIABLES[0], "1")))
    except ValueError:
        return 1  # OpenMP also accepts lists of numbers


def limit_threads(world: MPI.Comm) -> None:
    """Let BLAS, OpenMP and Numba start a thread per core of this rank, by affinity and cgroup.

    A user's own setting has precedence. All ranks must call, before NumPy is imported.
    """
    near = split_by_kernel(world)  # ranks of different containers may share cores
    by_rank = near.gather((frozenset(os.sched_getaffinity(0)), cgroups.cpus(Tree("/"))))
    counts = None
    if by_rank:
        topology = read("/", environ={})  # mistakes in variables are reported later, on all ranks
        masks, allowed = [mask for mask, _ in by_rank], quotas([of_rank for _, of_rank in by_rank])
        counts = [max(1, min(n_threads(topology, masks, rank), int(allowed[rank] + 1e-9))) for rank in range(near.size)]
    threads = near.scatter(counts)
    near.Free()
    for name in THREAD_VARIABLES:
        os.environ.setdefault(name, str(threads))
