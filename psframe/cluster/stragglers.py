"""Reports of late ranks while others wait for them (:class:`StragglerMonitor`), even inside calls of MPI."""

from collections.abc import Callable, Sequence
from threading import Event, Thread
from time import perf_counter

from psframe.cluster.heartbeat import ARRIVED, COMPUTING, IDLE, WAITING_REMOTE, Pulse
from psframe.record.log import LOG

LOOK_S = 0.5  # seconds between two checks
MUCH, MUCH_S = 10, 10.0  # times the seconds after which a rank is late, and at least, until all that is known is kept


class StragglerMonitor:
    """Thread on a node's first rank, which watches the others, and on its second, which watches the first.

    Parameters
    ----------
    pulse : Pulse
    members : sequence of int
        Numbers in the job of the node's ranks.
    late_s : float
        Seconds that another rank waits until the late one is named.
    tell : callable
        Called, once a stall, with what is told of a rank for which another has waited MUCH times as long.
    late_at_gate : callable
        Returns the ranks of the node that keep a gate closed that this one waits at (``Rendezvous.late``).

    Attributes
    ----------
    late : dict of int to float
        Seconds that others waited for each named rank until it came, by its number in the job; since :meth:`take`.
    """

    def __init__(
        self,
        pulse: Pulse,
        members: Sequence[int],
        late_s: float,
        late_at_gate: Callable[[], Sequence[int]] = tuple,
        tell: Callable[[str], object] = str,
    ):
        self.pulse, self.members, self.late_s, self.late_at_gate = pulse, members, late_s, late_at_gate
        self.tell, self._told = tell, set[int]()
        n = len(members)
        self.watched = range(1, n) if pulse.me == 0 else range(1) if pulse.me == 1 else range(0)
        self.every_s, self.much_s = min(LOOK_S, late_s / 4), max(MUCH * late_s, MUCH_S)
        self.late: dict[int, float] = {}
        self.epoch = 0
        self._behind: dict[int, tuple[int, int]] = {}  # by rank: its step, and the number of checks that found it there
        self._named: dict[int, tuple[int, int, float]] = {}  # its activity, its step, and the start of the wait for it
        self._ended = Event()
        self._thread = Thread(target=self._run, name="psframe-late", daemon=True)

    def start(self) -> None:
        """Start the thread, on a rank that has others to watch."""
        if len(self.watched) and self.late_s:
            self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def take(self) -> dict[int, float]:
        """Return the seconds in ``late``, and reset them."""
        late, self.late = self.late, {}
        return late

    def _run(self) -> None:
        while not self._ended.wait(self.every_s):
            self.look()

    def look(self) -> None:
        """Check the watched ranks once."""
        activities, steps, since = self.pulse.look()
        stuck = self._stuck(activities, steps, since)
        for rank in self.watched:
            self._note_return(rank, activities[rank], steps[rank], since[rank])
            if activities[rank] in (IDLE, WAITING_REMOTE):  # a rank that waits for other nodes is not the cause
                continue
            waiting = [
                since[other]
                for other, step in enumerate(steps)
                if activities[other] in (ARRIVED, WAITING_REMOTE)
                and other != rank
                and (step > steps[rank] or (step == steps[rank] and (activities[rank] == COMPUTING or rank in stuck)))
            ]
            if not waiting:
                self._behind.pop(rank, None)
                continue
            step, looks = self._behind.get(rank, (steps[rank], 0))
            self._behind[rank] = steps[rank], looks + 1 if step == steps[rank] else 1
            waited_s = perf_counter() - min(waiting)
            # checks are counted, too: a job that was suspended is not late
            surely_s = min(waited_s, self._behind[rank][1] * self.every_s)
            words = self._words(rank, waited_s, steps[rank])
            if surely_s >= self.late_s and rank not in self._named:
                self._named[rank] = activities[rank], steps[rank], min(waiting)
                LOG.warning(words, extra={"of": words})
            if surely_s >= self.much_s and rank not in self._told:
                self._told.add(rank)
                self.tell(words)

    def _stuck(self, does: Sequence[int], steps: Sequence[int], since: Sequence[float]) -> Sequence[int]:
        """Return the ranks that make no progress in an exchange at which all have arrived."""
        if set(does) == {ARRIVED} and len(set(steps)) == 1 and perf_counter() - max(since) > self.every_s:
            return self.late_at_gate()
        return ()

    def _note_return(self, rank: int, does: int, step: int, since: float) -> None:
        """Add a stall that is over to ``late``."""
        if rank in self._named and (does, step) != self._named[rank][:2]:
            *_, began = self._named.pop(rank)
            member = self.members[rank]
            self.late[member] = self.late.get(member, 0.0) + max(self.late_s, since - began)
            self._behind.pop(rank, None)
            self._told.discard(rank)

    def _words(self, rank: int, waited_s: float, step: int) -> str:
        return f"rank {self.members[rank]} is {waited_s:.1f} s late in exchange (step {step}, epoch {self.epoch})"
