"""Communicator of virtual ranks (:class:`VirtualComm`): what psframe calls of ``MPI.Comm``, over memory of one process.

A send and a rank's part in a collective are buffered: they end at once, as MPI may let them. A rank waits for what it
reads alone, which is the least that MPI promises; a sum is a left fold in the order of ranks.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from psframe.virtual import buffers
from psframe.virtual.meetings import Meetings
from psframe.virtual.patterns import Pattern
from psframe.virtual.request import VirtualRequest
from psframe.virtual.space import Space
from psframe.virtual.window import Memories, VirtualWindow


class VirtualComm(Meetings):
    """Communicator, seen from one rank.

    Parameters
    ----------
    ranks : Scheduler
    space : Space
        The same object on all of its ranks.
    rank : int
    job : Job

    Attributes
    ----------
    rank, size : int
    nodes, sizes
        As of Space.
    numbers : tuple of int
        Numbers of its ranks in the scheduler.
    """

    _n_shrinks = 0

    def site(self) -> Any:
        """Return the ranks that share memory with this one; see :func:`psframe.cluster.joining.join`."""
        return self.job.site(self)

    def Free(self) -> None:
        """Do nothing: no resource of MPI is held."""

    def Dup(self) -> "VirtualComm":
        return self.Split(0, self.rank)

    def Split(self, color: int = 0, key: int = 0) -> Any:
        """Return the communicator of the ranks with the same color, by key and rank; COMM_NULL for MPI.UNDEFINED."""

        def made(every: list[tuple[int, int]]) -> dict[int, Space]:
            spaces = {}
            for wanted in {c for c, _ in every if c != MPI.UNDEFINED}:
                order = sorted((k, rank) for rank, (c, k) in enumerate(every) if c == wanted)
                spaces[wanted] = Space([self.numbers[rank] for _, rank in order], self.job.node_of)
            return spaces

        space = self._together((color, key), made).get(color)
        if space is None:
            return MPI.COMM_NULL
        me = space.numbers.index(self.numbers[self.rank])
        return VirtualComm(self.ranks, space, me, self.job)

    def Shrink(self) -> "VirtualComm":
        """Return a communicator of the ranks that live. All of these must call."""
        self._n_shrinks += 1
        smaller = self._space.shrinking[self._n_shrinks]
        smaller.present.add(self.rank)
        key = (id(self._space), "shrink", self._n_shrinks)
        self.ranks.point()
        self.ranks.wake(key)

        def is_formed() -> bool:
            dead = self.ranks.dead(self.numbers)
            if not smaller.space and len(smaller.present.union(dead)) == self.size:
                left = sorted(smaller.present.difference(dead))
                smaller.space = Space([self.numbers[rank] for rank in left], self.job.node_of)
            return bool(smaller.space) or self.ranks.misses(key)

        self.ranks.until(is_formed)
        me = smaller.space.numbers.index(self.numbers[self.rank])
        return VirtualComm(self.ranks, smaller.space, me, self.job)

    def shared(self, make: Callable[[], Any]) -> Any:
        """Return one object on all ranks, made by the first that all are there for. All ranks must call."""
        return self._together(None, lambda every: make())

    def window(self, memory: np.ndarray) -> VirtualWindow:
        return VirtualWindow(self, self.shared(Memories), memory)

    # collectives of objects

    def Barrier(self) -> None:
        self._together(None, lambda every: 0)

    def bcast(self, obj: Any = None, root: int = 0) -> Any:
        return self._objects(obj if self.rank == root else None, [root], Pattern.BROADCAST)[root]

    def gather(self, obj: Any = None, root: int = 0) -> list[Any] | None:
        every = self._objects(obj, range(self.size) if self.rank == root else (), Pattern.GATHER)
        return [every[rank] for rank in range(self.size)] if self.rank == root else None

    def allgather(self, obj: Any = None) -> list[Any]:
        every = self._objects(obj, range(self.size), Pattern.ALLGATHER)
        return [every[rank] for rank in range(self.size)]

    def alltoall(self, objs: Any) -> list[Any]:
        every = self._objects(objs, range(self.size), Pattern.ALLTOALL)
        return [every[rank][self.rank] for rank in range(self.size)]

    def allreduce(self, obj: Any) -> Any:
        first, *others = self.allgather(obj)
        for other in others:
            first = first + other
        return first

    # collectives of arrays

    def Bcast(self, buffer: Any, root: int = 0) -> None:
        self.Ibcast(buffer, root).Wait()

    def Ibcast(self, buffer: Any, root: int = 0) -> VirtualRequest:
        numbers = buffers.array(buffer)
        own = numbers.copy() if self.rank == root else None

        def take(every: dict[int, Any]) -> None:
            if self.rank != root:
                numbers[:] = every[root]

        return self._collect(own, [root], Pattern.BROADCAST).request(take)

    def Ibarrier(self) -> VirtualRequest:
        return self._collect(None, range(self.size), Pattern.ALLGATHER).request(lambda every: None)

    def Allreduce(self, send: Any, receive: Any) -> None:
        self.Iallreduce(send, receive).Wait()

    def Iallreduce(self, send: Any, receive: Any) -> VirtualRequest:
        numbers = buffers.array(receive)
        own = (numbers if send is MPI.IN_PLACE else buffers.array(send)).copy()
        return self._collect(own, range(self.size), Pattern.SUM).request(lambda every: buffers.add(every, numbers))

    def Ireduce(self, send: Any, receive: Any, root: int = 0) -> VirtualRequest:
        numbers = buffers.array(receive) if self.rank == root else np.empty(0)
        own = (numbers if send is MPI.IN_PLACE else buffers.array(send)).copy()
        needed = range(self.size) if self.rank == root else ()
        return self._collect(own, needed, Pattern.REDUCE).request(
            lambda every: buffers.add(every, numbers) if self.rank == root else None
        )

    def Gather(self, send: Any, receive: Any, root: int = 0) -> None:
        self.Igather(send, receive, root).Wait()

    def Gatherv(self, send: Any, receive: Any, root: int = 0) -> None:
        self.Igatherv(send, receive, root).Wait()

    def Igather(self, send: Any, receive: Any, root: int = 0) -> VirtualRequest:
        counts = [len(buffers.array(send))] * self.size
        return self.Igatherv(send, [receive, counts] if receive is not None else None, root)

    def Igatherv(self, send: Any, receive: Any, root: int = 0) -> VirtualRequest:
        is_root = self.rank == root
        own = buffers.part(send)

        def take(every: dict[int, Any]) -> None:
            if is_root:
                buffers.spread([every[rank] for rank in range(self.size)], receive)

        return self._collect(own, range(self.size) if is_root else (), Pattern.GATHER).request(take)

    def Allgather(self, send: Any, receive: Any) -> None:
        own = buffers.array(send).copy()
        every = self._collect(own, range(self.size), Pattern.ALLGATHER).wait()
        buffers.array(receive)[:] = np.concatenate([every[rank] for rank in range(self.size)])

    def Allgatherv(self, send: Any, receive: Any) -> None:
        self.Iallgatherv(send, receive).Wait()

    def Iallgatherv(self, send: Any, receive: Any) -> VirtualRequest:
        where = buffers.places(receive)[self.rank]
        own = (buffers.array(receive)[where] if send is MPI.IN_PLACE else buffers.array(send)).copy()

        def take(every: dict[int, Any]) -> None:
            buffers.spread([every[rank] for rank in range(self.size)], receive)

        return self._collect(own, range(self.size), Pattern.ALLGATHER).request(take)

    def Alltoallv(self, send: Any, receive: Any) -> None:
        self.Ialltoallv(send, receive).Wait()

    def Ialltoallv(self, send: Any, receive: Any) -> VirtualRequest:
        numbers = buffers.array(send)
        own = [numbers[where].copy() for where in buffers.places(send)]

        def take(every: dict[int, Any]) -> None:
            buffers.spread([every[rank][self.rank] for rank in range(self.size)], receive)

        return self._collect(own, range(self.size), Pattern.ALLTOALL).request(take)
