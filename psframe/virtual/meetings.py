"""Collectives of virtual ranks (:class:`Meetings`): each rank brings a part, and reads those that it needs."""

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from psframe.virtual.mail import Mail
from psframe.virtual.patterns import ByNode, Pattern
from psframe.virtual.request import VirtualRequest
from psframe.virtual.space import Meeting

ALL = -1  # key of Meeting.waits


@dataclass
class Part:
    """This rank's part in a collective; it ``is_there`` once what the rank reads is."""

    comm: "Meetings"
    number: int
    meeting: Meeting
    needed: tuple[int, ...]  # one rank, or all, or none
    pattern: Pattern
    is_there: bool = False

    def bring(self, own: Any) -> None:
        """Bring what others read; what this rank reads begins to come as soon as it has been brought."""
        rank, parts, waits = self.comm.rank, self.meeting.parts, self.meeting.waits
        parts[rank] = own
        self.meeting.brought[self.comm.nodes[rank]] += _bytes(own)
        reads_one = len(self.needed) == 1
        if not self.needed or (reads_one and self.needed[0] in parts):
            self._come()
        else:
            waits[self.needed[0] if reads_one else ALL].append(self._come)
        for come in [*waits.pop(rank, ()), *(waits.pop(ALL, ()) if len(parts) == self.comm.size else ())]:
            come()

    def _come(self) -> None:
        comm, here = self.comm, self.comm.nodes[self.comm.rank]
        comm.job.costs.comes(self.pattern, comm.sizes, here, self._brought(), self._arrive)

    def _brought(self) -> ByNode:
        """Return the bytes of the parts by node; where each rank has shares of its own, of those of this one."""
        if self.pattern is not Pattern.ALLTOALL:
            return self.meeting.brought
        found, rank = dict.fromkeys(self.comm.sizes, 0), self.comm.rank
        for source, part in self.meeting.parts.items():
            mine = _bytes(part[rank]) if isinstance(part, list) else _bytes(part) // self.comm.size
            found[self.comm.nodes[source]] += mine
        return found

    def _arrive(self) -> None:
        self.is_there = True
        self.comm.ranks.wake(self._key)

    def arrived(self) -> dict[int, Any] | None:
        return self.meeting.parts if self.is_there else None

    def request(self, take: Callable[[dict[int, Any]], None]) -> VirtualRequest:
        def taken(every: dict[int, Any]) -> None:
            take(every)
            self.leave()

        return VirtualRequest(self.comm.ranks, self._key, self.arrived, taken, self._require)

    def wait(self) -> dict[int, Any]:
        ranks = self.comm.ranks
        while (every := self.arrived()) is None:
            self._require()
            ranks.block(self._key)
        self.leave()
        return every

    def leave(self) -> None:
        comm = self.comm
        comm.job.costs.collects(self.pattern, comm.sizes, self._brought())
        self.meeting.n_left += 1
        if self.meeting.n_left == self.comm.size:
            self.comm.forget(self.number)

    @property
    def _key(self) -> tuple[Any, ...]:
        return id(self.comm._space), self.number, self.comm.rank

    def _require(self) -> bool:
        return self.comm.require([self.comm.numbers[rank] for rank in self.needed])


class Meetings(Mail):
    """Base of :class:`psframe.virtual.comm.VirtualComm`: its collectives, which match in the order of the calls."""

    _n_calls = 0

    def _collect(self, own: Any, needed: Sequence[int], pattern: Pattern) -> Part:
        """Bring this rank's part to the next collective; it reads those of the ranks in ``needed``."""
        self.ranks.point()
        number, self._n_calls = self._n_calls, self._n_calls + 1
        reads = tuple(needed)
        part = Part(self, number, self._space.meetings[number], reads, pattern if reads else Pattern.NOTHING)
        part.bring(own)
        return part

    def _objects(self, own: Any, needed: Sequence[int], pattern: Pattern) -> dict[int, Any]:
        """Bring an object as it is now; return those of the ranks in ``needed``, as copies."""
        every = self._collect(pickle.dumps(own), needed, pattern).wait()
        return {rank: pickle.loads(every[rank]) for rank in needed}

    def _together(self, own: Any, make: Callable[[list[Any]], Any]) -> Any:
        """Wait for all ranks; return what ``make`` makes of their parts, once for all of them."""
        part = self._collect(own, range(self.size), Pattern.ALLGATHER)
        every, made = part.wait(), part.meeting.made
        if not made:
            made.append(make([every[rank] for rank in range(self.size)]))
        return made[0]

    def forget(self, number: int) -> None:
        """Drop a collective that all ranks have left."""
        self._space.meetings.pop(number, None)


def _bytes(part: Any) -> int:
    """Return the size of a rank's part: arrays, or a pickled object; what is neither has none."""
    if isinstance(part, list):
        return sum(map(_bytes, part))
    return len(part) if isinstance(part, bytes) else getattr(part, "nbytes", 0)
