"""Methods of broadcast, gather and allreduce of int32 (:class:`Method`): MPI buffers, pickled objects, shared memory.

A method serves one operation and one placement. Its ``k``-th iteration is ``prepare(k)``, ``meet()``, ``move()``,
``check(k)``. All ranks must call each.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from psframe import compiled
from psframe.cluster.cluster import Cluster
from psframe.collectives.base import cut
from psframe.errors import UserError
from psframe.memory import empty, pages
from psframe.memory.placement import Placement
from psframe.memory.process_site import Site

OPERATIONS = ("bcast", "gather", "allreduce")
RAMP = 1009  # period of the test pattern: a prime, so that shifted data does not match
CHUNK = 16 * RAMP  # numbers that stay in a core's private caches

_RAMP = np.tile(np.arange(RAMP, dtype=np.int32), CHUNK // RAMP)


def base(rank: int, k: int) -> int:
    """Return the first number of a rank's message in iteration ``k``."""
    return 31 * rank + 7 * k


def fill(array: np.ndarray, first: int) -> None:
    """Fill ``array``, int32 (n,), with the pattern that begins with ``first``."""
    for lo in range(0, len(array), CHUNK):
        part = array[lo : lo + CHUNK]
        np.add(_RAMP[: len(part)], first, out=part)


def check(array: np.ndarray, first: int, times: int = 1) -> None:
    """Compare ``array``, int32 (n,), with the sum of ``times`` ranks' patterns; raise UserError if they differ."""
    expected = _RAMP * times + first
    for lo in range(0, len(array), CHUNK):
        part = array[lo : lo + CHUNK]
        if not np.array_equal(part, expected[: len(part)]):
            at = lo + int(np.flatnonzero(part != expected[: len(part)])[0])
            raise UserError(
                f"a collective must bring what was sent, got {array[at]} for {expected[at - lo]} at place {at}; "
                "trust no figure of this MPI"
            )


class Method:
    """Base class of the methods: the arrays of one rank, in memory of one placement.

    Attributes
    ----------
    sent, received : ndarray of int32
        ``sent`` (count,) holds this rank's message, and after a broadcast the received one. ``received`` is the result
        of a gather, (n_ranks, count), on rank 0 only, or of an allreduce, (count,).
    blocks : list of ndarray
        This rank's memory, uint8, whose pages can be counted.
    """

    def __init__(self, cluster: Cluster, operation: str, count: int, placement: Placement, site: Site):
        self.cluster, self.comm, self.operation, self.count = cluster, cluster.comm, operation, count
        self.placement, self.site = placement, site
        self.blocks: list[np.ndarray] = []
        self.sent: Any
        self.received: Any
        self.sent, self.received = self._arrays()
        self.move: Callable[[], None] = getattr(self, operation)

    def _arrays(self) -> tuple[Any, Any]:
        rows = self.comm.size if self.comm.rank == 0 else 0
        shape = {"bcast": 0, "gather": (rows, self.count), "allreduce": self.count}[self.operation]
        return self._private(self.count), self._private(shape)

    def _private(self, shape: Any) -> np.ndarray:
        array = empty(shape, "int32", self.placement)
        array[...] = -1
        self.blocks.append(array.reshape(-1).view(np.uint8))
        return array

    def prepare(self, k: int) -> None:
        """Write this rank's message, and -1 into its receive buffers."""
        if self.operation == "bcast" and self.comm.rank:
            self.sent[:] = -1
        else:
            fill(self.sent, base(self.comm.rank, k))
        self.received[...] = -1

    def meet(self) -> None:
        """Wait for all ranks, as a user of the method would."""
        self.comm.Barrier()

    def check(self, k: int) -> None:
        """Raise UserError if this rank received anything but the others' messages."""
        n = self.comm.size
        if self.operation == "bcast":
            check(self.sent, base(0, k))
        elif self.operation == "allreduce":
            check(self.received, sum(base(rank, k) for rank in range(n)), n)
        else:
            for rank, row in enumerate(self.received):
                check(row, base(rank, k))


class Buffer(Method):
    """mpi4py's upper-case calls, on buffers."""

    def bcast(self) -> None:
        self.comm.Bcast(self.sent)

    def gather(self) -> None:
        self.comm.Gather(self.sent, self.received if self.comm.rank == 0 else None)

    def allreduce(self) -> None:
        self.comm.Allreduce(self.sent, self.received)


class Object(Method):
    """mpi4py's lower-case calls, which pickle; Python allocates their results."""

    def _arrays(self) -> tuple[Any, Any]:
        return self._private(self.count), np.empty(0, np.int32)

    def bcast(self) -> None:
        self.sent = self.comm.bcast(self.sent)

    def gather(self) -> None:
        self.received = self.comm.gather(self.sent) or []

    def allreduce(self) -> None:
        self.received = self.comm.allreduce(self.sent)

    def prepare(self, k: int) -> None:
        if self.operation == "bcast" and self.comm.rank:
            self.sent = self.received  # frees the previous result
        else:
            fill(self.sent, base(self.comm.rank, k))
            self.received = np.empty(0, np.int32)


class Shared(Method):
    """As psframe's collective of that name: every rank works in shared memory, so nothing is copied.

    After a broadcast every rank reads rank 0's numbers in place, after a gather rank 0 reads every rank's. An allreduce
    is one pass, in which each rank sums a segment; all ranks see the result.
    """

    def _arrays(self) -> tuple[Any, Any]:
        rank, n = self.comm.rank, self.comm.size
        slots = self._seen_by_all(1 if self.operation == "bcast" else n)
        self.slots = slots
        sent = slots[0 if self.operation == "bcast" else rank]
        if self.operation == "gather":
            return sent, slots if rank == 0 else slots[:0]
        return sent, self._seen_by_all(1)[0] if self.operation == "allreduce" else slots[:0, 0]

    def _seen_by_all(self, rows: int) -> np.ndarray:
        """Return shared memory of the node, int32 (rows, count): a row near each rank, or one split among them."""
        page = compiled.numa.PAGE_BYTES
        row_bytes = -(-self.count * 4 // page) * page
        memory = self.cluster.link.share(rows * row_bytes, take=False)
        rank, n = self.comm.rank, self.comm.size
        own_bytes = slice(rank * row_bytes, (rank + 1) * row_bytes)
        if rows == 1:
            part = cut(row_bytes // page, n, rank)
            own_bytes = slice(part.start * page, part.stop * page)
            if self.operation == "bcast":
                own_bytes = slice(0, row_bytes if rank == 0 else 0)
        if len(memory[own_bytes]):
            pages.bind(memory[own_bytes], self.placement.policy(self.site, True), self.site.note)
            pages.populate(memory[own_bytes])
            self.blocks.append(memory[own_bytes])
        self.cluster.barrier()  # no rank touches another's pages before their owner has
        return memory.view(np.int32).reshape(rows, -1)[:, : self.count]

    def meet(self) -> None:
        self.cluster.barrier()

    def prepare(self, k: int) -> None:
        if self.operation != "bcast" or self.comm.rank == 0:
            fill(self.sent, base(self.comm.rank, k))
        if self.operation == "allreduce":
            self.received[cut(self.count, self.comm.size, self.comm.rank)] = -1

    def bcast(self) -> None:
        self.cluster.barrier()

    def gather(self) -> None:
        self.cluster.barrier()

    def allreduce(self) -> None:
        part = cut(self.count, self.comm.size, self.comm.rank)
        for lo in range(part.start, part.stop, CHUNK):
            at = slice(lo, min(lo + CHUNK, part.stop))
            total = self.received[at]
            total[:] = self.slots[0, at]
            for row in self.slots[1:, at]:
                np.add(total, row, out=total)
        self.cluster.barrier()


class SharedCopy(Shared):
    """The same between private arrays, as in MPI's calls: copies into shared memory and out of it again."""

    def _arrays(self) -> tuple[Any, Any]:
        self.seen, self.total = super()._arrays()
        return Method._arrays(self)

    def prepare(self, k: int) -> None:
        Method.prepare(self, k)

    def bcast(self) -> None:
        if self.comm.rank == 0:
            self.seen[:] = self.sent
        self.cluster.barrier()
        if self.comm.rank:
            self.sent[:] = self.seen

    def gather(self) -> None:
        self.seen[:] = self.sent
        self.cluster.barrier()
        if self.comm.rank == 0:
            self.received[...] = self.total

    def allreduce(self) -> None:
        self.seen[:] = self.sent
        self.cluster.barrier()
        private, self.received = self.received, self.total
        super().allreduce()
        self.received = private
        private[:] = self.total


#: by name; method ``c`` is a separate program
METHODS: dict[str, type[Method]] = {"buffer": Buffer, "object": Object, "shared": Shared, "shared_copy": SharedCopy}


def needed_bytes(operation: str, methods: list[str], n_ranks: int, n_bytes: int) -> int:
    """Return the peak bytes of all ranks of a machine, one method at a time, with copies by MPI and pickle.

    The sum of an allreduce of objects is computed from pickled and unpickled copies of both operands.
    """
    private = {"bcast": 1, "gather": 2, "allreduce": 3}[operation] * n_ranks * n_bytes
    needs = {
        "c": private,
        "buffer": private,
        "object": {"bcast": 3, "gather": 4, "allreduce": 5}[operation] * n_ranks * n_bytes,
        "shared": (n_ranks + 1) * n_bytes,
        "shared_copy": private + (n_ranks + 1) * n_bytes,
    }
    return max(needs[method] for method in methods)
