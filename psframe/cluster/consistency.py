"""What must be the same on all nodes before the first step: psframe itself, model and data; and clocks should be."""

import time
from collections.abc import Callable
from hashlib import sha256
from itertools import zip_longest
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
from mpi4py import MPI

from psframe import __version__
from psframe.cluster.cluster import Cluster
from psframe.errors import UserError

CLOCK_S = 60.0  # by which the clocks of two nodes may differ


class Describes(Protocol):
    """A network, of which one compares what it says of itself."""

    def describe(self) -> list[str]:
        """Return its layers and tensors, a line each."""
        ...


T = TypeVar("T", bound=Describes)


def code(folder: Path = Path(__file__).parents[1]) -> str:
    """Return a digest of psframe's Python as it lies in ``folder``; what is compiled may be by each host itself."""
    digest = sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def judge_code(cluster: Cluster) -> None:
    """Hold every node's psframe against node 0's. All ranks must call.

    Raises
    ------
    AgreedError
        Where one is of other code: its ranks would, at best, compute something else.
    """
    if cluster.n_nodes > 1:
        _judge(cluster, f"{__version__} with code {code()}" if cluster.node_rank == 0 else "", "one psframe", "install")


def same_network(cluster: Cluster, build: Callable[[], T]) -> T:
    """Build this rank's network and hold it against rank 0's: the model may be a user's own. All ranks must call.

    Rank 0 builds first, so that a model that cannot be built is told of once.

    Raises
    ------
    AgreedError
        Where a rank has another one: gradients would be summed of networks that are not the same.
    """
    built: list[T] = []

    def build_first() -> list[str]:
        built.append(build())
        return list(built[0].describe())

    first = cluster.agree(build_first)

    def judge() -> T:
        network = built[0] if built else build()
        described = list(network.describe())
        if described != first:
            mine, theirs = next((a, b) for a, b in zip_longest(described, first, fillvalue="no such layer") if a != b)
            raise UserError(
                f"all ranks must have one model, got {mine} on rank {cluster.rank}, {theirs} on rank 0; let it depend "
                "on its arguments alone (a set's order is another one in every process), and copy its module to all "
                "nodes"
            )
        return network

    return cluster.agree_everywhere(judge)


def judge_data(cluster: Cluster, checksum: int, moments: np.ndarray) -> None:
    """Hold every node's data, once it was read, against node 0's. All ranks must call.

    Mean and deviation are node 0's: another CPU may have rounded otherwise.

    Parameters
    ----------
    checksum : int
        Of the node's data without their moments, on its first rank.
    moments : ndarray

    Raises
    ------
    AgreedError
        Where a node has others.
    """
    if cluster.n_nodes == 1:
        return
    found = ""
    if cluster.leaders != MPI.COMM_NULL:
        cluster.leaders.Bcast(moments)
        found = f"samples with checksum {checksum:016x}"
    _judge(cluster, found, "the same data", "copy")


def _judge(cluster: Cluster, mine: str, what: str, verb: str) -> None:
    first = cluster.agree(lambda: mine)

    def judge() -> None:
        if mine != first:
            raise UserError(
                f"all nodes must have {what}, got {mine} on node {cluster.node}, {first} on node 0; {verb} it there"
            )

    cluster.agree_by_node(judge)


def late_clocks(cluster: Cluster) -> list[str]:
    """Return, on rank 0, which nodes' clocks are minutes off; elsewhere nothing. All ranks must call."""
    if cluster.n_nodes == 1 or cluster.leaders == MPI.COMM_NULL:
        return []
    cluster.leaders.Barrier()
    every = cluster.leaders.gather(time.time()) or []
    warnings = []
    for node, now in enumerate(every):
        off_s = now - every[0]
        if abs(off_s) > CLOCK_S:
            behind, seem = ("ahead of", "new") if off_s > 0 else ("behind", "old")
            warnings.append(
                f"the clock of node {node} ({cluster.hosts[node]}) is {abs(off_s):.0f} s {behind} that of node 0 "
                f"({cluster.hosts[0]}): its files will seem {seem}; set it"
            )
    return warnings
