"""Collectives of virtual ranks (:class:`Meetings`): each rank brings a part, and reads those that it needs."""

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from psframe.virtual.mail import Mail, Meeting
from psframe.virtual.request import VirtualRequest, require


@dataclass
class Part:
    """This rank's part in a collective."""

    comm: "Meetings"
    number: int
    meeting: Meeting
    needed: tuple[int, ...]  # one rank, or all, or none

    def arrived(self) -> dict[int, Any] | None:
        parts = self.meeting.parts
        if len(self.needed) <= 1:
            return parts if all(rank in parts for rank in self.needed) else None
        return parts if len(parts) == self.comm.size else None

    def request(self, take: Callable[[dict[int, Any]], None]) -> VirtualRequest:
        def taken(every: dict[int, Any]) -> None:
            take(every)
            self.leave()

        return VirtualRequest(self.comm.ranks, self._key, self.arrived, taken, self._numbers)

    def wait(self) -> dict[int, Any]:
        ranks = self.comm.ranks
        while (every := self.arrived()) is None:
            require(ranks, self._numbers)
            ranks.block(self._key)
        self.leave()
        return every

    def leave(self) -> None:
        own = self.meeting.parts[self.comm.rank]
        n_bytes = len(own) if isinstance(own, bytes) else getattr(own, "nbytes", 0)
        self.comm.job.collects(self.comm.size, self.comm.n_nodes, len(self.needed), n_bytes)
        self.meeting.n_left += 1
        if self.meeting.n_left == self.comm.size:
            self.comm.forget(self.number)

    @property
    def _key(self) -> tuple[Any, ...]:
        return id(self.comm._space), self.number, *(self.needed if len(self.needed) == 1 else ())

    @property
    def _numbers(self) -> list[int]:
        return [self.comm.numbers[rank] for rank in self.needed]


class Meetings(Mail):
    """Base of :class:`psframe.virtual.comm.VirtualComm`: its collectives, which match in the order of the calls."""

    _n_calls = 0

    def _collect(self, own: Any, needed: Sequence[int]) -> Part:
        """Bring this rank's part to the next collective; it reads those of the ranks in ``needed``."""
        self.ranks.point()
        number, self._n_calls = self._n_calls, self._n_calls + 1
        meeting = self._space.meetings[number]
        meeting.parts[self.rank] = own
        part = Part(self, number, meeting, tuple(needed))
        self.ranks.wake((id(self._space), number, self.rank))  # who reads from this rank alone
        if len(meeting.parts) == self.size:
            self.ranks.wake((id(self._space), number))
        return part

    def _objects(self, own: Any, needed: Sequence[int]) -> dict[int, Any]:
        """Bring an object as it is now; return those of the ranks in ``needed``, as copies."""
        every = self._collect(pickle.dumps(own), needed).wait()
        return {rank: pickle.loads(every[rank]) for rank in needed}

    def _together(self, own: Any, make: Callable[[list[Any]], Any]) -> Any:
        """Wait for all ranks; return what ``make`` makes of their parts, once for all of them."""
        part = self._collect(own, range(self.size))
        every, made = part.wait(), part.meeting.made
        if not made:
            made.append(make([every[rank] for rank in range(self.size)]))
        return made[0]

    def forget(self, number: int) -> None:
        """Drop a collective that all ranks have left."""
        self._space.meetings.pop(number, None)
