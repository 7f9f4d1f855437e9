"""Scheduler of virtual ranks (:class:`Scheduler`): threads of which one runs at a time, in a chosen order.

Ranks meet at points: before each access to memory that they share, and at each message. Between two points a rank runs
alone, so a run depends on the order of its points only, and the same order gives the same run.
"""

import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import CO_OPTIMIZED
from types import FrameType
from typing import Any, Protocol

STACK_BYTES = 1 << 20  # of a rank's thread; a thousand ranks have a gigabyte of addresses, and touch little of it


class Deadlock(Exception):
    """No rank can go on, and some have not ended."""


class _Ended(BaseException):
    """Ends the thread of a rank that will not go on."""


@dataclass(eq=False)
class Rank:
    """One virtual rank.

    Attributes
    ----------
    number : int
    at_s : float
        Its virtual time, in seconds.
    lives : bool
        False once it was killed: it makes no further step, and nothing of it is cleaned up, as after SIGKILL.
    waits_for : hashable or None
        Key of :meth:`Scheduler.block`, while it waits.
    n_points : int
        Points that it has passed.
    missed : set of hashable
        Keys of what it has looked for in vain since :meth:`Scheduler.until` began to look.
    since : int
        Number of the message that its time counts from; -1: from the beginning.
    """

    number: int
    at_s: float = 0.0
    lives: bool = True
    waits_for: Hashable = None
    n_points: int = 0
    has_ended: bool = False
    result: Any = None
    missed: set[Hashable] = field(default_factory=set)
    since: int = -1
    turn: threading.Lock = field(default_factory=threading.Lock)


class Order(Protocol):
    """Choice of the rank that goes on next, among those that can."""

    def add(self, rank: Rank) -> None:
        """Add a rank that can go on."""

    def pop(self) -> Rank | None:
        """Remove and return the next rank; None if there is none."""


class Scheduler:
    """Runs a function on each of ``n`` virtual ranks.

    Parameters
    ----------
    n : int
    order : Order
        Chooses the next rank at every point.
    kills : mapping of int to int
        For ranks that are to be killed, the number of points that each passes before.

    Attributes
    ----------
    current : Rank
        The rank that runs.
    n_events : int
        Calls of :meth:`wake`.
    n_cores : int or None
        Cores of a node; None: one for each of its ranks.
    latency_s : float
        Virtual seconds until a rank that waits learns of what another one has done.
    charge : callable
        Called at a rank's points, returns the virtual seconds of what it has done since the last one.
    """

    def __init__(self, n: int, order: Order, kills: dict[int, int] | None = None):
        self.ranks, self.order, self.kills = [Rank(k) for k in range(n)], order, kills or {}
        self.current = self.ranks[0]
        self._waiting: dict[Hashable, list[Rank]] = defaultdict(list)
        self._over, self._ends = threading.Lock(), False
        self._lines_of: tuple[str, ...] = ()
        self._error: BaseException | None = None
        self.n_events = 0
        self.latency_s = 0.0
        self.n_cores: int | None = None
        self.charge: Callable[[Rank], float] = lambda rank: 0.0

    @property
    def now_s(self) -> float:
        """Virtual time of the current rank."""
        return self.current.at_s

    def run(self, body: Callable[[int], Any]) -> list[Any]:
        """Return ``body(number)`` of every rank; None of one that was killed.

        Raises the first error of a rank, and Deadlock where none can go on.
        """
        before = threading.stack_size(STACK_BYTES)
        try:
            threads = [
                threading.Thread(target=self._begin, args=(rank, body), name=f"rank {rank.number}", daemon=True)
                for rank in self.ranks
            ]
            self._over.acquire()
            for rank, thread in zip(self.ranks, threads, strict=True):
                rank.turn.acquire()
                thread.start()
                self.order.add(rank)
        finally:
            threading.stack_size(before)
        self._hand_over(self._next())
        self._over.acquire()
        self._ends = True
        for rank, thread in zip(self.ranks, threads, strict=True):
            if not rank.has_ended:
                rank.turn.release()
            thread.join()
        if self._error:
            raise self._error
        return [rank.result for rank in self.ranks]

    def point(self) -> None:
        """Let other ranks go first if the order says so. The current rank calls, as the next ones."""
        me = self.current
        me.n_points += 1
        seconds = self.charge(me)  # which may let time go by itself
        me.at_s += seconds
        if self.kills.get(me.number) == me.n_points:
            self.kill(me.number)
        else:
            self.order.add(me)
        self._switch(me)

    def interrupt_in(self, modules: tuple[str, ...]) -> None:
        """Let each line be a point of the functions that this rank calls from now on, and that lie in some modules.

        ``modules`` are beginnings of their paths.
        """
        self._lines_of = modules
        sys.settrace(self._called)

    def sleep(self, seconds: float) -> None:
        """Let virtual time go by for this rank."""
        self.current.at_s += seconds
        self.point()

    def pause(self) -> None:
        """Wait until :meth:`go_on`."""
        self._switch(self.current)

    def go_on(self, rank: Rank, at_s: float) -> None:
        """Let a rank that pauses go on at a virtual time."""
        rank.at_s = at_s
        self.order.add(rank)

    def misses(self, key: Hashable) -> bool:
        """Note what this rank has looked for in vain, for :meth:`until`; return False."""
        self.current.missed.add(key)
        return False

    def until(self, comes: Callable[[], bool]) -> None:
        """Wait until ``comes()`` is True, which looks for what others bring, and tells of it by :meth:`misses`."""
        while True:
            before = self.n_events
            self.current.missed.clear()
            if comes():
                return
            if self.n_events == before:  # nothing that it would have missed has happened since it began to look
                missed = self.current.missed
                self.block(next(iter(missed)) if len(missed) == 1 else None)

    def block(self, key: Hashable = None) -> None:
        """Wait until :meth:`wake` is called with this key, or with any if it is None."""
        me = self.current
        me.waits_for = key
        self._waiting[key].append(me)
        self._switch(me)
        me.waits_for = None

    def wake(self, *keys: Hashable) -> None:
        """Let the ranks go on that wait for one of these keys, from the current virtual time on."""
        self.n_events += 1
        for key in (*keys, None):
            for rank in self._waiting.pop(key, ()):
                if rank.lives:
                    if (learns_s := self.current.at_s + self.latency_s) > rank.at_s:
                        rank.at_s, rank.since = learns_s, self.current.since
                    self.order.add(rank)

    @contextmanager
    def event(self, at_s: float, since: int) -> Iterator[None]:
        """Let what is done within happen at a time, by no rank; the rank that runs calls, between two of its points.

        ``since`` is that of those whom it wakes.
        """
        before, self.current = self.current, Rank(-1, at_s, since=since)
        yield
        self.current = before

    def wake_all(self) -> None:
        """Let all ranks go on that wait."""
        self.wake(*list(self._waiting))

    def dead(self, ranks: Sequence[int]) -> list[int]:
        """Return the positions in ``ranks`` of those that have been killed, or have ended."""
        return [at for at, number in enumerate(ranks) if not self.ranks[number].lives or self.ranks[number].has_ended]

    def kill(self, number: int) -> None:
        """Let a rank die at the current virtual time: it goes on no more."""
        self.ranks[number].lives = False
        self.wake_all()  # they notice it

    def _begin(self, rank: Rank, body: Callable[[int], Any]) -> None:
        rank.turn.acquire()
        try:
            if not self._ends:
                rank.result = body(rank.number)
        except _Ended:
            pass
        except BaseException as error:
            self._error = self._error or error
        rank.has_ended = True
        if not self._ends:
            self.wake_all()
            self._hand_over(self._next())

    def _called(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        code = frame.f_code
        # not of a module or class, which is imported under a lock
        watched = code.co_flags & CO_OPTIMIZED and code.co_filename.startswith(self._lines_of)
        return self._before_line if watched else None

    def _before_line(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any]:
        if event == "line":
            self.point()
        return self._before_line

    def _switch(self, me: Rank) -> None:
        """Let the next rank run, and return when it is this one's turn."""
        if not self._ends:
            following = self._next()
            if following is me:
                return
            self._hand_over(following)
            me.turn.acquire()
        if self._ends:
            raise _Ended

    def _hand_over(self, following: Rank | None) -> None:
        """Let a rank run; None ends the run."""
        if following is None:
            self._over.release()
        else:
            self.current = following
            following.turn.release()

    def _next(self) -> Rank | None:
        """Return the rank to go on; None once the run is over, by an error, a deadlock or its end."""
        if self._error:
            return None
        following = self.order.pop()
        while following and not following.lives:
            following = self.order.pop()
        if following is None and (stuck := [rank for rank in self.ranks if rank.lives and not rank.has_ended]):
            told = ", ".join(f"rank {rank.number} for {rank.waits_for}" for rank in stuck)
            self._error = Deadlock(f"all ranks wait: {told}")
        return following
