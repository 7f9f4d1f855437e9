"""Deadline inside MPI's own calls, at the start and at the end (:class:`Watchdog`): MPI itself waits for ever.

A thread of the node's first rank, and one of its second in case that the first is stuck, look at what all ranks of the
node note. MPI lets Python's threads run while it waits.
"""

from collections.abc import Callable, Sequence
from threading import Event, Lock, Thread

from psframe.cluster.flight import machine
from psframe.cluster.gates import PeerLost, Rendezvous
from psframe.cluster.mpi_start import LIMIT, limit_s
from psframe.record import flight

#: waits that have no deadline of their own
ENDLESS = flight.WAITS - {flight.GATE, flight.NODES}
#: phases of psframe's own that end by themselves, and may take long
LONG = frozenset({flight.COMPILE})
SPACE = flight.space()
STILL = ("T", "t", "Z", "X", "gone")  # states of a process that a signal has stopped, or that has ended
START_S = 60.0  # least deadline for a rank that computes before training begins: it may import, or read data
#: seconds between two looks
LEAST_S, MOST_S = 0.05, 1.0
GRACE = 3  # looks that a rank leaves to one that knows more, or comes first


class Observed:
    """A rank of the node, from look to look.

    Attributes
    ----------
    looks : int
        How often it was found as it was: a job that was suspended is not late.
    """

    def __init__(self, memory: memoryview):
        self.memory, self.looks, self.last, self.cpu_s = memory, 0, (0, 0), 0.0
        self.read = flight.read(memory, 0)

    def look(self) -> None:
        """Read its phases; count the look if it has gone on with nothing since the last one."""
        self.read = flight.read(self.memory, 0)
        now = self.read.header["events"], self.read.phases[-1][3] if self.read.phases else 0
        self.looks = self.looks + 1 if now == self.last else 0
        self.last = now

    @property
    def kinds(self) -> list[int]:
        """Kinds of its open phases, the outermost first."""
        return [phase[0] for phase in self.read.phases]

    @property
    def waits(self) -> bool:
        return bool(self.kinds) and self.kinds[-1] in flight.WAITS

    @property
    def is_absent(self) -> bool:
        """True if it has ended, or waits to be needed."""
        return self.read.header["state"] in (0, flight.ENDED) or flight.SPARE in self.kinds

    @property
    def is_stopped(self) -> bool:
        """True if a signal has stopped its process, or it has ended, as far as that is visible."""
        return self.is_visible and machine.process(self.read.header["pid"]).get("state", "gone") in STILL

    @property
    def is_visible(self) -> bool:
        """True if its process can be seen: containers may have PID namespaces."""
        return self.read.header["space"] == SPACE

    def computes(self) -> bool:
        """Return True if its process has used a core, or waited for a disk, since the last call, or cannot be seen."""
        if not self.is_visible:
            return True
        process = machine.process(self.read.header["pid"])
        before, self.cpu_s = self.cpu_s, process.get("cpu_s", 0.0)
        return self.cpu_s > before or process.get("state") == "D"


class Watchdog:
    """Watch over a node's ranks, which ends the job when one has not come to others for ``sync.deadline_s``.

    Parameters
    ----------
    memory : memoryview
        Rings of the node's ranks, one after the other.
    meeting : Rendezvous
        Of the node; its deadline may change.
    is_whole : bool
        True if the job has no other nodes.
    end : callable
        Ends the job with an error, on this rank.
    """

    def __init__(self, memory: memoryview, meeting: Rendezvous, is_whole: bool, end: Callable[[PeerLost], object]):
        self.memory, self.end, self.stopped, self.looking = memory, end, Event(), Lock()
        self._watch(meeting, range(len(meeting.members)), is_whole)
        self.thread = Thread(target=self._run, name="psframe-watchdog", daemon=True)

    def _watch(self, meeting: Rendezvous, places: Sequence[int], is_whole: bool) -> None:
        """Watch from now on over the ranks of ``meeting``, whose rings have these places in the memory."""
        size = flight.N_BYTES
        self.ranks = [Observed(self.memory[place * size : (place + 1) * size]) for place in places]
        self.meeting, self.is_whole, self.late_looks = meeting, is_whole, 0

    def follow(self, meeting: Rendezvous, places: Sequence[int], is_whole: bool) -> None:
        """Watch over the ranks that are left after a death, as in the constructor, in these places of the memory."""
        with self.looking:
            self._watch(meeting, places, is_whole)
        self.start()

    def start(self) -> None:
        """Start the thread, on a rank that has others to watch, and is to."""
        is_one = self.meeting.me < 2 and (len(self.ranks) > 1 or not self.is_whole)
        if is_one and self.thread.ident is None:
            self.thread.start()

    def stop(self) -> None:
        """End the thread."""
        self.stopped.set()

    @property
    def every_s(self) -> float:
        return min(MOST_S, max(LEAST_S, self.meeting.deadline_s / 20))

    def _run(self) -> None:
        while not self.stopped.wait(self.every_s):
            with self.looking:
                lost, told_at = self.look(), self.meeting.told_at
            if lost and told_at.tell():
                self.end(lost)

    def look(self) -> PeerLost | None:
        """Look at all ranks once; return an error once the deadline has passed, and others have had time to tell."""
        for rank in self.ranks:
            rank.look()
        waiting, late = self._late()
        if not waiting:
            self.late_looks = 0
            return None
        self.late_looks += 1
        knows_more = self.meeting.me == 0 and (late or self.is_whole)
        return self._lost(waiting, late) if self.late_looks > (0 if knows_more else GRACE) else None

    def _late(self) -> tuple[list[int], list[int]]:
        """Return the ranks that wait in vain, and those that they wait for, as far as they are on this node."""
        looks = self.meeting.deadline_s / self.every_s
        present = [number for number, rank in enumerate(self.ranks) if not rank.is_absent]
        waiting = [n for n in present if self.ranks[n].kinds and self.ranks[n].kinds[-1] in ENDLESS]
        waiting = [number for number in waiting if self.ranks[number].looks >= looks]
        late = [number for number in present if not self.ranks[number].waits]
        if not waiting or any(self._goes_on(self.ranks[number], looks) for number in late):
            return [], []
        if not late:  # all wait; it may be for each other, unless one will tell of it itself
            if any(self.ranks[number].kinds[-1] not in ENDLESS for number in present):
                return [], []
            looks = max(looks, self._elsewhere_s(waiting) / self.every_s)
            stuck = [self.ranks[number].looks >= looks for number in present]
            return (waiting, self._others(waiting)) if all(stuck) else ([], [])
        return waiting, late

    def _elsewhere_s(self, waiting: Sequence[int]) -> float:
        """Return the least seconds to wait where all ranks of this node do: those of other nodes cannot be seen.

        They may compile or read data before training begins, and have more to compute before an epoch ends.
        """
        ranks = [self.ranks[number] for number in waiting]
        starts = any(rank.read.header["state"] == flight.STARTS for rank in ranks)
        ends_epoch = any(flight.EPOCH in rank.kinds and flight.EXCHANGE not in rank.kinds for rank in ranks)
        return limit_s() if not self.is_whole and (starts or ends_epoch) else 0.0

    def _goes_on(self, rank: Observed, looks: float) -> bool:
        """Return True if a rank that others wait for has not been still for as long as it may be."""
        if rank.looks < looks or not (LONG.isdisjoint(rank.kinds) or rank.is_stopped):
            return True
        starts = rank.read.header["state"] == flight.STARTS
        return starts and rank.looks * self.every_s < START_S and rank.computes()

    def _others(self, waiting: Sequence[int]) -> list[int]:
        """Return the ranks at fault where all are in calls: stopped, or in an earlier step, or in a call of their own.

        In another call than most: their calls do not fit together.
        """
        stopped = [number for number in waiting if self.ranks[number].is_stopped]
        if stopped:
            return stopped
        steps = [self.ranks[number].read.header["step"] for number in waiting]
        if len(set(steps)) > 1:
            return [number for number, step in zip(waiting, steps, strict=True) if step == min(steps)]
        calls = {number: self.ranks[number].kinds[-1] for number in waiting}
        if not self.is_whole:  # the others wait for the one of them that waits for other nodes
            calls = {number: call for number, call in calls.items() if call != flight.SOCKET} or calls
        most = max(calls.values(), key=[*calls.values()].count)
        return [number for number, call in calls.items() if call != most]

    def _lost(self, waiting: Sequence[int], late: Sequence[int]) -> PeerLost:
        seconds, members, key = self.meeting.deadline_s, self.meeting.names, "sync.deadline_s"
        if not late and self._elsewhere_s(waiting) > seconds:
            seconds, key = self._elsewhere_s(waiting), LIMIT
        first = next((number for number in waiting if number not in late), waiting[0])
        kind = self.ranks[first].kinds[-1]
        call = "the other ranks of its node" if kind == flight.SOCKET else flight.NAMES.get(kind, "a wait")
        ranks = tuple(members[number] for number in late)
        if not ranks and self.is_whole:
            who = "some rank"
        elif not ranks:
            who = "a rank of another node"
        else:
            who = f"rank {', '.join(map(str, ranks))}"
        return PeerLost(
            f"{who} did not come to {call} for {seconds:g} s ({key}), where rank {members[first]} waits, and "
            "the others cannot go on without it",
            ranks,
            True,
            False,
        )
