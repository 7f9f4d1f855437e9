"""Computation of blocks of other workers beside a worker's own (:class:`Lending`), as their speeds ask for.

A worker that helps others computes theirs first. It leaves the sums of whole nodes of the tree where their owners take
them (:class:`Outboxes`), and the owners add them in the order of the tree. So no bit depends on who computes a block.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from psframe.cluster.cluster import Cluster
from psframe.cluster.counters import NodeCounters
from psframe.cluster.roles import Team
from psframe.collectives.order import nodes
from psframe.memory.allocator import Allocator, shared_block
from psframe.nn.base import LayerHook
from psframe.nn.network import Network
from psframe.record.clock import CLOCK
from psframe.record.traffic import Traffic
from psframe.train.compute.blocks import LendingSampler, Loan
from psframe.train.compute.local import Work
from psframe.train.compute.tree import Fold, Tree
from psframe.train.data.batches import Batches

TAG = 0x10A4  # of MPI's messages between nodes


class Handover(NamedTuple):
    """Row ``number`` of ``worker``, which it leaves for the worker ``to``."""

    worker: int
    number: int
    to: int


class Outboxes:
    """Rows (size,) of each worker that others take: in place on the worker's node, over MPI on other nodes.

    A row is written again in the next step, after an exchange in which all workers have come. All ranks of a node must
    construct it, in the same order, as its memory is shared.

    Parameters
    ----------
    cluster : Cluster
    team : Team
    nodes : sequence of int
        Node of each worker.
    size, n_rows : int
        Numbers of a row, and rows of a worker.

    Attributes
    ----------
    traffic : Traffic
    waited_s : float
        Seconds that this rank has waited for others; reset by the owner.
    """

    def __init__(
        self,
        cluster: Cluster,
        team: Team,
        nodes: Sequence[int],
        size: int,
        n_rows: int,
        allocator: Allocator,
    ):
        self.cluster, self.workers, self._nodes = cluster, team.workers, nodes
        self.traffic, self.waited_s = Traffic(), 0.0
        self._rows: dict[int, np.ndarray] = {}
        self._counters: dict[int, NodeCounters] = {}
        head = NodeCounters.n_bytes(1)
        for number, node in enumerate(nodes):
            if node == cluster.node:
                memory = shared_block(allocator, head + 4 * n_rows * size, "exchange", number == team.worker)
                self._counters[number] = NodeCounters(memory, 1, cluster.rendezvous)
                self._rows[number] = memory[head : head + 4 * n_rows * size].view(np.float32).reshape(n_rows, size)
        reaches_others = team.worker is not None and cluster.n_nodes > 1
        self._inbox = allocator.zeros(size if reaches_others else 0, np.float32, "exchange")
        self._leaving: list[tuple[Any, int]] = []
        self._taken = [0] * len(nodes)  # rows that each worker has left, up to the last step

    def row(self, worker: int, number: int) -> np.ndarray:
        """Return the memory in which a row of ``worker`` is, for it to write, or for others once they have it."""
        return self._rows[worker][number] if worker in self._rows else self._inbox

    def leave(self, row: Handover) -> None:
        """Leave a row of this rank's for another worker, in the order of their numbers."""
        self._counters[row.worker].add(0)
        if row.to not in self._rows:
            numbers = self._rows[row.worker][row.number]
            request = self.cluster.comm.Isend(numbers, self.workers[row.to], TAG)
            self._leaving.append((request, self._nodes[row.to]))
            self.traffic.send(numbers.nbytes)

    def flush(self) -> None:
        """Wait until rows for other nodes have gone: this rank may not be in MPI's calls before they are needed."""
        while self._leaving:
            with self._waiting():
                self._until(*self._leaving.pop())

    def wait(self, worker: int, number: int) -> None:
        """Wait for row ``number`` of another worker; raises PeerLost if it has died, or has missed the deadline."""
        with self._waiting():
            if worker in self._counters:
                late = self.workers[worker] - self.cluster.rank + self.cluster.node_rank  # its number on the node
                self._counters[worker].until(0, self._taken[worker] + number + 1, lambda: [late])
                self.traffic.read += self._rows[worker][number].nbytes
            else:
                self._until(self.cluster.comm.Irecv(self._inbox, self.workers[worker], TAG), self._nodes[worker])
                self.traffic.receive(self._inbox.nbytes)

    def end(self, n_left: Sequence[int]) -> None:
        """End a step in which each worker has left so many rows."""
        self._taken = [taken + n for taken, n in zip(self._taken, n_left, strict=True)]

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        began = CLOCK.now()
        with self.cluster.pulse.arrived():
            yield
        self.waited_s += CLOCK.now() - began

    def _until(self, request: Any, node: int) -> None:
        if not request.Test():
            self.cluster.patience.wait(request, [node])


class Lending(Tree):
    """Computation of a worker's blocks, but for those that it lends, and of those that others lend it.

    Parameters
    ----------
    outboxes : Outboxes
        With ``sampler.n_rows`` rows of gradients.
    """

    sampler: LendingSampler
    ranks_meet = True

    def __init__(
        self,
        sampler: LendingSampler,
        worker: int | None,
        network: Network,
        batches: Batches,
        allocator: Allocator,
        outboxes: Outboxes,
    ):
        self.worker, self.outboxes = worker, outboxes
        super().__init__(sampler, worker, network, batches, allocator)
        self._loans: list[Loan] | None = None

    @property
    def most_blocks(self) -> int:
        return max(self.sampler.even) if self.worker is not None else 0

    @property
    def waited_s(self) -> float:
        return self.outboxes.waited_s

    def traffics(self) -> Sequence[Traffic]:
        return [self.outboxes.traffic]

    def begin(self) -> None:
        super().begin()
        self.outboxes.waited_s = 0.0

    def gradients(
        self, mine: np.ndarray, n_samples: int, epoch: int, losses: np.ndarray, hook: LayerHook | None = None
    ) -> float:
        if self._loans is not self.sampler.loans:
            self._divide(self.sampler.loans)
        loading_s = 0.0
        blocks = self.blocks((block for block, _, _ in self._computed), mine, n_samples)
        for (block, samples), (_, fold, row) in zip(blocks, self._computed, strict=True):
            loading_s += Work.gradients(self, samples, n_samples, epoch, losses[block:], hook)
            _add(fold)
            if row:
                self.outboxes.leave(row)
        for helper, number, fold in self._borrowed:
            self.outboxes.wait(helper, number)
            _add(fold)
        self.outboxes.flush()
        self.outboxes.end(self._n_left)
        return loading_s

    def _divide(self, loans: list[Loan]) -> None:
        """List what this worker computes, leaves for others and takes from them in a step under these loans."""
        self._loans, self._n_left = loans, [0] * len(self.outboxes.workers)
        self._computed: list[tuple[int, Fold | None, Handover | None]] = []
        taken = []
        for loan in loans:
            for node in nodes(loan.blocks):
                number, width = self._n_left[loan.helper], node.stop - node.start
                self._n_left[loan.helper] += 1
                if loan.helper == self.worker:
                    self._help(node, Handover(self.worker, number, loan.owner))
                elif loan.owner == self.worker:
                    taken.append((loan.helper, number, width))
        self._keep(taken)

    def _help(self, node: slice, row: Handover) -> None:
        """Compute a node for another worker, for which its sum is left behind its last block."""
        blocks, grads = range(node.start, node.stop), self.network.arena.grads
        folds = self.folds([1] * len(blocks), [grads] * len(blocks), self.outboxes.row(row.worker, row.number))
        for block, fold in zip(blocks, folds, strict=True):
            self._computed.append((block, fold, row if block == blocks[-1] else None))

    def _keep(self, taken: Sequence[tuple[int, int, int]]) -> None:
        """Compute the own blocks that are not lent, and add the nodes (helper, number of its row, width) of others."""
        assert self.worker is not None
        kept, grads = self.sampler.kept(self.worker), self.network.arena.grads
        blocks = range(kept.start, kept.stop)
        spans = [1] * len(blocks) + [width for *_, width in taken]
        rows = [grads] * len(blocks) + [self.outboxes.row(helper, number) for helper, number, _ in taken]
        folds = [*self.folds(spans, rows, grads)] if len(spans) > 1 else [None]
        self._computed += [(block, fold, None) for block, fold in zip(blocks, folds, strict=False)]
        borrowed = zip(taken, folds[len(blocks) :], strict=True)
        self._borrowed = [(helper, number, fold) for (helper, number, _), fold in borrowed]


def _add(fold: Fold | None) -> None:
    if fold:
        summed, target = fold
        summed.into(target)
