"""Messages from rank to rank (:class:`Mail`), as a communicator of virtual ranks has them."""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from mpi4py import MPI

from psframe.cluster.gates import PeerLost
from psframe.virtual import buffers
from psframe.virtual.job import Job
from psframe.virtual.request import VirtualRequest
from psframe.virtual.scheduler import Scheduler
from psframe.virtual.space import Letter, Space, Turn

TOLD = 1024  # bytes of an object, as far as the cost of its message goes


class Mail:
    """Base of :class:`psframe.virtual.comm.VirtualComm`: its attributes, and messages between two ranks."""

    def __init__(self, ranks: Scheduler, space: Space, rank: int, job: Job):
        self.ranks, self._space, self.rank, self.job = ranks, space, rank, job
        self.numbers, self.nodes, self.sizes = space.numbers, space.nodes, space.sizes
        self.size = len(self.numbers)

    def require(self, numbers: Sequence[int]) -> bool:
        """Return False; raises PeerLost if one of these ranks was killed, or the communicator was revoked."""
        if dead := [number for number in numbers if not self.ranks.ranks[number].lives]:
            raise PeerLost(f"rank {dead[0]} has died", tuple(dead), True)
        if self._space.is_revoked:
            raise PeerLost("a rank is lost, as another one tells", (), False)
        return False

    def Revoke(self) -> None:
        """Let all ranks that wait here raise PeerLost, now and later."""
        self._space.is_revoked = True
        self.ranks.wake_all()

    def charge(self, source: int, target: int, n_bytes: int) -> None:
        """Charge this rank for a message between two ranks of the communicator."""
        self.job.costs.sends(self.numbers[source], self.numbers[target], n_bytes)

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        self._post(copy.deepcopy(obj), dest, tag, TOLD)

    def recv(self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG) -> Any:
        request = self._receive(source, tag, lambda letter: None)
        request.Wait()
        return request.result

    def sendrecv(self, obj: Any, dest: int, source: int = MPI.ANY_SOURCE) -> Any:
        self.send(obj, dest)
        return self.recv(source)

    def Send(self, buffer: Any, dest: int, tag: int = 0) -> None:
        numbers = buffers.array(buffer)
        self._post(numbers.copy(), dest, tag, numbers.nbytes)

    def Isend(self, buffer: Any, dest: int, tag: int = 0) -> VirtualRequest:
        numbers = buffers.array(buffer)
        arrives = self._letter(numbers.copy(), dest, tag)
        self.job.costs.sends(self.numbers[self.rank], self.numbers[dest], numbers.nbytes, arrives)
        return VirtualRequest(self.ranks, None, lambda: True, lambda found: None)

    def Recv(self, buffer: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: Any = None) -> None:
        self._received(buffer, source, tag, status).Wait()

    def Irecv(self, buffer: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG) -> VirtualRequest:
        return self._received(buffer, source, tag, None)

    def Iprobe(self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG) -> bool:
        """Return True if a message is there; let other ranks go on first, as who probes lets MPI make progress."""
        self.charge(self.rank, self.rank, 0)
        self.ranks.point()
        self.require(self.numbers if source == MPI.ANY_SOURCE else [self.numbers[source]])
        return any(Turn(source, tag).fits(letter.source, letter.tag) for letter in self._space.mail[self.rank].there)

    def _received(self, buffer: Any, source: int, tag: int, status: Any) -> VirtualRequest:
        numbers = buffers.array(buffer)

        def take(found: Letter) -> None:
            numbers[:] = found.data
            if status is not None:
                status.source, status.tag = found.source, found.tag

        return self._receive(source, tag, take)

    def _post(self, data: Any, dest: int, tag: int, n_bytes: int) -> None:
        arrives = self._letter(data, dest, tag)
        self.charge(self.rank, dest, n_bytes)
        arrives()

    def _letter(self, data: Any, dest: int, tag: int) -> Callable[[], None]:
        """Begin to send; return what tells the other rank that the message is there."""
        self.ranks.point()
        letter, box = Letter(self.rank, tag, data), self._space.mail[dest]
        box.expect(letter)

        def arrives() -> None:
            box.arrive(letter)
            self.ranks.wake((id(self._space), "mail", dest))

        return arrives

    def _receive(self, source: int, tag: int, take: Callable[[Letter], None]) -> VirtualRequest:
        box = self._space.mail[self.rank].there
        turn = Turn(source, tag)
        turns = self._space.turns[self.rank]
        turns.append(turn)

        def arrived() -> Any:
            for letter in box:
                first = next((t for t in turns if t.fits(letter.source, letter.tag)), None)
                if first is turn:  # messages match receives in the order in which both were begun
                    box.remove(letter)
                    turns.remove(turn)
                    return letter
            return None

        def taken(found: Letter) -> None:
            request.result = found.data
            take(found)

        needs = self.numbers if source == MPI.ANY_SOURCE else [self.numbers[source]]
        key = (id(self._space), "mail", self.rank)
        request = VirtualRequest(self.ranks, key, arrived, taken, partial(self.require, needs))
        return request
