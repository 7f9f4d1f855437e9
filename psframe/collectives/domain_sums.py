"""Sums of a node's gradients: at once (:class:`AtOnce`), or from domain to domain of its memory (:class:`ByDomain`).

At once, a worker writes its gradients to where those lie who sum them, most of them in other domains. By domain, it
writes them at home. The workers of the first domain add theirs, piece by piece, those of the next one go on from that
sum, and so on. That is the same left fold, to the same bits, and only sums cross from domain to domain.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from psframe import compiled
from psframe.cluster.counters import NodeCounters
from psframe.cluster.gates import READY, Rendezvous
from psframe.collectives.domains import Chain, Near, Turn
from psframe.collectives.segments import ITEM_BYTES
from psframe.memory.allocator import Allocator, shared_block
from psframe.record.traffic import Traffic


class AtOnce:
    """Sum in one pass: each reducer adds its segment of all slots.

    Attributes
    ----------
    remote : int
        Bytes that this rank reads from other domains, or writes there, in a step.
    total : ndarray or None
        The sum, float32 (S,), of which reducers read their segments; None if they sum the slots.
    late : callable
        Returns the ranks of the node that keep others waiting.
    """

    total: np.ndarray | None = None

    def __init__(self, meeting: Rendezvous, remote: int):
        self._meeting, self.remote, self.late = meeting, remote, meeting.late

    def attach(self, slots: Sequence[np.ndarray], segment: slice) -> None:
        """Note nothing."""

    def sum(self) -> None:
        """Leave the sum to the reducers."""

    def wait(self, chunk: int) -> None:
        """Wait until a chunk of the gradients can be summed. Reducers call."""
        self._meeting.wait(READY[chunk % 2])


class ByDomain:
    """Sum from domain to domain, in a vector for each run of workers.

    Parameters
    ----------
    meeting : Rendezvous
        Of the node's ranks.
    runs : list of slice
        Workers of each domain, one after the other.
    near : Near
    worker : int
        Number of this rank among the node's workers; negative if it is none.
    traffic : Traffic
        Counts what this rank adds.

    Attributes
    ----------
    remote, total, late
        As in :class:`AtOnce`.
    """

    def __init__(
        self,
        meeting: Rendezvous,
        allocator: Allocator,
        size: int,
        runs: list[slice],
        near: Near,
        worker: int,
        traffic: Traffic,
    ):
        self._meeting, self._near, self._worker, self._traffic, self._steps = meeting, near, worker, traffic, 0
        self._chain = chain = Chain(size, allocator.home("exchange").page_bytes, runs)
        self._run = chain.run_of(worker)
        self._own = chain.of(self._run, worker)
        memory = allocator.shared(len(runs) * chain.padded * ITEM_BYTES, "exchange", self._pages())
        self._sums = memory.view(np.float32).reshape(-1, chain.padded)[:, :size]
        self.total = self._sums[-1]
        n = chain.n_workers
        block = shared_block(allocator, NodeCounters.n_bytes(n), "exchange", meeting.me == 0)
        self._counters = NodeCounters(block, n, meeting)
        self.remote = 0

    def _pages(self) -> list[slice]:
        """Return this rank's pages of the sums, in bytes: those of the pieces that it adds."""
        chain, starts = self._chain, [piece.start for piece in self._chain.pieces]
        ends = [*starts[1:], chain.padded]
        begin = self._run * chain.padded
        return [slice((begin + starts[n]) * ITEM_BYTES, (begin + ends[n]) * ITEM_BYTES) for n in self._own]

    def attach(self, slots: Sequence[np.ndarray], segment: slice) -> None:
        """Note the workers' slots, float32 (S,), and the segment that this rank updates; empty if it is no reducer."""
        self._tasks: list[tuple[Any, np.ndarray, list[Turn]]] = []
        self._awaited = self._chain.over(segment)
        self.remote = self._crossing(segment)
        for number in self._own:
            piece, run = self._chain.pieces[number], self._run
            before = [self._sums[run - 1, piece]] if run else []
            awaited = [self._chain.turn(run - 1, number)] if run else []
            mean = compiled.elementwise.Mean([*before, *(slot[piece] for slot in slots[self._chain.runs[run]])])
            self._tasks.append((mean, self._sums[run, piece], awaited))

    def _crossing(self, segment: slice) -> int:
        """Return the bytes that this rank reads from near other NUMA nodes, to add its pieces and for its segment."""
        chain, first, me = self._chain, self._near.n_servers, self._meeting.me
        run, n = self._run, 0
        for number in self._own:
            others = [*range(chain.runs[run].start, chain.runs[run].stop)]
            others += [chain.turn(run - 1, number).worker] if run else []
            piece = chain.pieces[number]
            n += (piece.stop - piece.start) * sum(self._near.crosses(me, first + other) for other in others)
        for number, piece in enumerate(chain.pieces):
            n_read = max(0, min(piece.stop, segment.stop) - max(piece.start, segment.start))
            n += n_read * self._near.crosses(me, first + chain.turn(len(chain.runs) - 1, number).worker)
        return n * ITEM_BYTES

    def sum(self) -> None:
        """Add this rank's pieces, each once the domain before has. All ranks must call."""
        self._steps += 1
        self._meeting.wait(READY[0])  # those who add nothing, too: so the gate names who keeps the gradients away
        for mean, out, awaited in self._tasks:
            self._until(awaited)
            mean.into(out)
            self._traffic.sum(out.nbytes, mean.n_rows)
            self._counters.add(self._worker)

    def wait(self, chunk: int) -> None:
        """Wait until the sum of this reducer's segment is complete. Reducers call."""
        self._until(self._awaited)

    def _until(self, turns: Sequence[Turn]) -> None:
        for turn in turns:
            self._counters.until(turn.worker, (self._steps - 1) * turn.of + turn.number, self.late)

    def late(self) -> list[int]:
        """Return the ranks of the node that keep others waiting: of the first run that is not done, or at a gate."""
        before = self._near.n_servers
        for run, workers in enumerate(self._chain.runs):
            left = [
                before + worker
                for worker in range(workers.start, workers.stop)
                if worker != self._worker
                and self._counters.lacks(worker, self._steps * len(self._chain.of(run, worker)))
            ]
            if left:
                return left
        return self._meeting.late()
