"""What must be the same on all nodes before the first step: psframe itself, model and data; and clocks should be."""

import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import numpy as np
from mpi4py import MPI

from psframe import __version__, compiled
from psframe.arena import Layout
from psframe.cluster import Cluster
from psframe.errors import UserError

CLOCK_S = 60.0  # by which the clocks of two nodes may differ


def code(folder: Path = Path(__file__).parent) -> str:
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


def judge_model(cluster: Cluster, layout: Layout, fixed: Callable[[], str]) -> None:
    """Hold every node's tensors against node 0's: a model may be a user's own. All ranks must call; AgreedError.

    ``fixed`` says what the model keeps beside them.
    """
    if cluster.n_nodes > 1:
        first = cluster.node_rank == 0
        found = f"{layout.n_params:,} parameters in {layout.describe()}{fixed()}" if first else ""
        _judge(cluster, found, "one model", "copy")


def judge_data(cluster: Cluster, memory: np.ndarray, moments: np.ndarray) -> None:
    """Hold every node's data, once it was read, against node 0's. All ranks must call.

    Mean and deviation are node 0's: another CPU may have rounded otherwise.

    Parameters
    ----------
    memory : ndarray of uint8
        All of the data, in whole cache lines.
    moments : ndarray
        Those of it.

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
        found = f"samples with checksum {compiled.elementwise.checksum(memory.view(np.float32)):016x}"
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
