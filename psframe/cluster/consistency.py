"""Checks before the first step (:func:`same_network`): psframe, model and data must be the same on all nodes.

Clocks should be, too (:func:`late_clocks`).
"""

import time
from collections.abc import Callable
from hashlib import sha256
from itertools import zip_longest
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from psframe import __version__
from psframe.cluster.cluster import Cluster
from psframe.cluster.mpi import MPI
from psframe.errors import UserError

CLOCK_S = 60.0  # seconds by which the clocks of two nodes may differ


class Describes(Protocol):
    """A network with a description that can be compared."""

    def describe(self) -> list[str]:
        """Return one line per layer and tensor."""
        ...


T = TypeVar("T", bound=Describes)


def code(folder: Path = Path(__file__).parents[1]) -> str:
    """Return a digest, 12 hex digits, of the Python files in ``folder``; hosts may differ in compiled extensions."""
    digest = sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def check_code(cluster: Cluster) -> None:
    """Compare every node's psframe with node 0's. All ranks must call.

    Raises
    ------
    AgreedError
        If a node has different code: its ranks would, at best, compute something else.
    """
    if cluster.n_nodes > 1:
        _check(cluster, f"{__version__} with code {code()}" if cluster.node_rank == 0 else "", "one psframe", "install")


def same_network(cluster: Cluster, build: Callable[[], T]) -> T:
    """Build this rank's network and compare it with rank 0's: the model may be user code. All ranks must call.

    Rank 0 builds first, so that a model that cannot be built is reported once.

    Raises
    ------
    AgreedError
        If a rank has a different network: the sum would mix gradients of different networks.
    """
    built: list[T] = []

    def build_first() -> list[str]:
        built.append(build())
        return list(built[0].describe())

    first = cluster.run_on_root(build_first)

    def check() -> T:
        network = built[0] if built else build()
        described = list(network.describe())
        if described != first:
            layer, other = next((a, b) for a, b in zip_longest(described, first, fillvalue="no such layer") if a != b)
            raise UserError(
                f"all ranks must have one model, got {layer} on rank {cluster.rank}, {other} on rank 0; let it depend "
                "on its arguments alone (a set's order is another one in every process), and copy its module to all "
                "nodes"
            )
        return network

    return cluster.run_on_all(check)


def check_data(cluster: Cluster, checksum: int, moments: np.ndarray) -> None:
    """Compare every node's data, once read, with node 0's. All ranks must call.

    Mean and deviation become node 0's: another CPU may have rounded differently.

    Parameters
    ----------
    checksum : int
        Of the node's data without their moments, on its first rank.
    moments : ndarray of float64, shape (2, C)
        Mean and standard deviation per channel; overwritten on each node's first rank.

    Raises
    ------
    AgreedError
        If a node has different data.
    """
    if cluster.n_nodes == 1:
        return
    content = ""
    if cluster.leaders != MPI.COMM_NULL:
        cluster.leaders.Bcast(moments)
        content = f"samples with checksum {checksum:016x}"
    _check(cluster, content, "the same data", "copy")


def _check(cluster: Cluster, mine: str, what: str, verb: str) -> None:
    first = cluster.run_on_root(lambda: mine)

    def check() -> None:
        if mine != first:
            raise UserError(
                f"all nodes must have {what}, got {mine} on node {cluster.node}, {first} on node 0; {verb} it there"
            )

    cluster.run_on_nodes(check)


def late_clocks(cluster: Cluster) -> list[str]:
    """Return, on rank 0, a warning per node with a clock more than CLOCK_S off; [] elsewhere. All ranks must call."""
    if cluster.n_nodes == 1 or cluster.leaders == MPI.COMM_NULL:
        return []
    cluster.leaders.Barrier()
    times = cluster.leaders.gather(time.time()) or []
    warnings = []
    for node, now in enumerate(times):
        off_s = now - times[0]
        if abs(off_s) > CLOCK_S:
            behind, seem = ("ahead of", "new") if off_s > 0 else ("behind", "old")
            warnings.append(
                f"the clock of node {node} ({cluster.hosts[node]}) is {abs(off_s):.0f} s {behind} that of node 0 "
                f"({cluster.hosts[0]}): its files will seem {seem}; set it"
            )
    return warnings
