"""Messages from rank to rank (:class:`Mail`), as a communicator of virtual ranks has them."""

import copy
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mpi4py import MPI

from psframe.virtual import buffers
from psframe.virtual.request import VirtualRequest
from psframe.virtual.scheduler import Scheduler

TOLD = 1024  # bytes of an object, as far as the cost of its message goes


@dataclass
class Meeting:
    """Parts of the ranks in one collective, by rank; ``made`` of them is something that all share, once."""

    parts: dict[int, Any] = field(default_factory=dict)
    made: list[Any] = field(default_factory=list)
    n_left: int = 0


@dataclass(frozen=True)
class Turn:
    """A receive that has begun."""

    source: int
    tag: int

    def fits(self, source: int, tag: int) -> bool:
        """Return True if it takes a message from that rank with that tag."""
        return self.source in (source, MPI.ANY_SOURCE) and self.tag in (tag, MPI.ANY_TAG)


class Space:
    """State that the ranks of a communicator share; ``numbers`` are theirs in the scheduler."""

    def __init__(self, numbers: Sequence[int]):
        self.numbers = tuple(numbers)
        self.meetings: dict[int, Meeting] = defaultdict(Meeting)
        self.mail: dict[int, deque[tuple[int, int, Any]]] = defaultdict(deque)  # to a rank: (source, tag, data)
        self.turns: dict[int, list[Turn]] = defaultdict(list)  # of a rank


@dataclass(frozen=True)
class Job:
    """A job of virtual ranks.

    Attributes
    ----------
    node_of : sequence of int
        Node of each rank of the scheduler.
    site : callable
        Makes a rank's :class:`psframe.cluster.joining.Site`.
    sends : callable
        ``sends(source, target, n_bytes)`` is called by the source of a message, with numbers in the scheduler.
    collects : callable
        ``collects(n_ranks, n_nodes, n_read, n_bytes)`` is called by each rank at the end of a collective of so many
        ranks on so many nodes, with the number of ranks that it has read from, and the bytes that it has brought.
    """

    node_of: Sequence[int]
    site: Callable[[Any], Any]
    sends: Callable[[int, int, int], None] = lambda source, target, n_bytes: None
    collects: Callable[[int, int, int, int], None] = lambda n_ranks, n_nodes, n_read, n_bytes: None


class Mail:
    """Base of :class:`psframe.virtual.comm.VirtualComm`: its attributes, and messages between two ranks."""

    def __init__(self, ranks: Scheduler, space: Space, rank: int, job: Job):
        self.ranks, self._space, self.rank, self.job = ranks, space, rank, job
        self.numbers, self.size = space.numbers, len(space.numbers)
        self.n_nodes = len({job.node_of[number] for number in self.numbers})

    def charge(self, other: int, n_bytes: int) -> None:
        """Charge this rank for a message to another one, or an access to its memory."""
        self.job.sends(self.numbers[self.rank], self.numbers[other], n_bytes)

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        self._post(copy.deepcopy(obj), dest, tag, TOLD)

    def recv(self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG) -> Any:
        request = self._receive(source, tag, lambda data: None)
        request.Wait()
        return request.result

    def sendrecv(self, obj: Any, dest: int, source: int = MPI.ANY_SOURCE) -> Any:
        self.send(obj, dest)
        return self.recv(source)

    def Send(self, buffer: Any, dest: int, tag: int = 0) -> None:
        numbers = buffers.array(buffer)
        self._post(numbers.copy(), dest, tag, numbers.nbytes)

    def Isend(self, buffer: Any, dest: int, tag: int = 0) -> VirtualRequest:
        self.Send(buffer, dest, tag)
        return VirtualRequest(self.ranks, None, lambda: True, lambda found: None)

    def Recv(self, buffer: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: Any = None) -> None:
        self._received(buffer, source, tag, status).Wait()

    def Irecv(self, buffer: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG) -> VirtualRequest:
        return self._received(buffer, source, tag, None)

    def Iprobe(self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG) -> bool:
        """Let other ranks go on: who probes has nothing to do but to let MPI make progress."""
        self.charge(self.rank, 0)
        self.ranks.point()
        return False

    def _received(self, buffer: Any, source: int, tag: int, status: Any) -> VirtualRequest:
        numbers = buffers.array(buffer)

        def take(found: tuple[int, int, Any]) -> None:
            numbers[:] = found[2]
            if status is not None:
                status.source, status.tag = found[0], found[1]

        return self._receive(source, tag, take)

    def _post(self, data: Any, dest: int, tag: int, n_bytes: int) -> None:
        self.ranks.point()
        self.charge(dest, n_bytes)
        self._space.mail[dest].append((self.rank, tag, data))
        self.ranks.wake((id(self._space), "mail", dest))

    def _receive(self, source: int, tag: int, take: Callable[[Any], None]) -> VirtualRequest:
        box = self._space.mail[self.rank]
        turn = Turn(source, tag)
        turns = self._space.turns[self.rank]
        turns.append(turn)

        def arrived() -> Any:
            for at, (sender, sent_tag, _) in enumerate(box):
                first = next((t for t in turns if t.fits(sender, sent_tag)), None)
                if first is turn:  # messages match receives in the order in which both were begun
                    found = box[at]
                    del box[at]
                    turns.remove(turn)
                    return found
            return None

        def taken(found: Any) -> None:
            request.result = found[2]
            take(found)

        needs = self.numbers if source == MPI.ANY_SOURCE else [self.numbers[source]]
        request = VirtualRequest(self.ranks, (id(self._space), "mail", self.rank), arrived, taken, needs)
        return request
