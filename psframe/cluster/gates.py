"""Gates of a node's ranks in shared memory (:class:`Rendezvous`): waits without MPI that notice dead or stuck ranks."""

import fcntl
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from psframe import compiled
from psframe.record.flight import GATE, phase

Wait = Literal["auto", "spin", "block"]
Lost = Callable[[list[int]], list[int]]  #: of dead ranks, those that a wait is in vain without

LOOK_S = 0.25  # seconds between two checks for dead ranks, while waiting
SPINS = {"auto": 4000, "spin": 1 << 60, "block": 0}  # `auto`, if every rank has a core: about 100 microseconds
DEADLINE_S = 1800.0

#: gates: gradients are in the slots, chunk is summed (each by half of the slots); step is complete; all have arrived
READY, SUMMED, COMMITTED, TOGETHER = (0, 1), (2, 3), 4, 5
#: a rank whose wait for other nodes has reached the deadline calls them, and waits for their answers: for this share
#: of the deadline, and at least these seconds
ROLL_SHARE, ROLL_S = 0.1, 2.0


class PeerLost(Exception):
    """A rank that others wait for has died, or has missed the deadline.

    Attributes
    ----------
    ranks : tuple of int
        Numbers of the lost ranks in the job.
    speaks : bool
        True if this rank must report to the user: the first of its node to notice.
    dead : bool
        True if the rank has ended, as far as this one knows; else it may be stuck.
    """

    stays = True  # the phases that it leaves

    def __init__(self, message: str, ranks: tuple[int, ...], speaks: bool, dead: bool = True):
        super().__init__(message)
        self.ranks, self.speaks, self.dead = ranks, speaks, dead


@dataclass(frozen=True)
class Parties:
    """Ranks of a node that arrive at a gate.

    Attributes
    ----------
    ranks : tuple of int
        Their numbers on the node.
    n : int
    mine : bool
        True if this rank is one of them.
    """

    ranks: tuple[int, ...]
    n: int
    mine: bool


class Rendezvous:
    """Gates of a node, and for each rank a lock on a byte of their memory, which the kernel drops when the rank ends.

    Parameters
    ----------
    memory : ndarray of uint8
        Shared by the node's ranks, at least :func:`size` bytes, zeroed on creation.
    fd : int
        File descriptor of that memory. It stays open, since closing it drops the lock. Unused if the rank is alone.
    me : int
        This rank's number on the node.
    members : sequence of int
        Numbers in the job of the node's ranks.

    Attributes
    ----------
    n_cores : int
        Cores of the node's ranks together.
    renamed : dict of int to int
        Of a job that has gone on without a rank: the numbers that ``members`` had when it began.
    is_away : callable
        Returns True if a rank of this node waits for other nodes. That rank has the same deadline, and then ``roll_s``
        to find the missing node.
    """

    Gates: Callable[..., Any] = compiled.sync.Gates  #: makes the gates of a node, in memory
    Counters: Callable[..., Any] = compiled.sync.Counters  #: makes counters

    def __init__(self, memory: np.ndarray, fd: int, me: int, members: Sequence[int]):
        self.fd, self.me, self.members = fd, me, tuple(members)
        self.gates = self.Gates(memory, len(members), me)
        self.renamed: dict[int, int] = {}
        self.told_at = self.gates  # keeps which rank is the first to notice a loss
        self.everyone = self.among(tuple(range(len(members))))
        self._parties: dict[int, Parties] = {}  # of each gate's last passage
        self.deadline_s = DEADLINE_S
        self.is_away: Callable[[int], bool] = lambda rank: False
        self.n_cores = len(os.sched_getaffinity(0))
        self._live()

    def _live(self) -> None:
        """Take the lock that shows the others that this rank lives."""
        if self.everyone.n > 1:
            fcntl.lockf(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self.me)

    def close(self) -> None:
        """Drop this rank's lock. No rank may wait here afterwards."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def configure(self, wait: Wait, deadline_s: float, n_cores: int) -> None:
        """Set the kind of wait, its deadline, and the node's cores; with fewer cores than ranks, ``auto`` blocks."""
        self.gates.spins = SPINS[wait] if n_cores >= self.everyone.n or wait != "auto" else 0
        self.deadline_s, self.n_cores = deadline_s, n_cores

    def name(self, rank: int) -> int:
        """Return the number by which the user knows a rank of the job: the one that it had when the job began."""
        return self.renamed.get(rank, rank)

    @property
    def names(self) -> tuple[int, ...]:
        """Numbers by which the user knows the ranks of the node."""
        return tuple(map(self.name, self.members))

    @property
    def roll_s(self) -> float:
        """Seconds allowed for a call to the other nodes."""
        return max(ROLL_S, ROLL_SHARE * self.deadline_s)

    def among(self, ranks: tuple[int, ...]) -> Parties:
        """Return the parties of a gate, from the numbers of ranks on this node."""
        return Parties(ranks, len(ranks), self.me in ranks)

    def meet(
        self, gate: int, parties: Parties, waits: bool = True, late: Callable[[], list[int]] | None = None
    ) -> None:
        """Pass a gate: arrive if this rank is one of the ``parties``, and if it ``waits``, wait until all have arrived.

        Every rank of the node must call, for each passage. ``late`` is as in :meth:`until`, by default :meth:`late`.
        Raises PeerLost if a rank of the node has died, or the deadline has passed.
        """
        self._parties[gate] = parties
        if not self.gates.meet(gate, parties.n, parties.mine, waits, LOOK_S):
            self._watch(partial(self.gates.wait, gate), late or self.late)

    def together(self) -> None:
        """Wait until every rank of the node has arrived."""
        self.meet(TOGETHER, self.everyone)

    def wait(self, gate: int) -> None:
        """Wait for the last passage begun at a gate."""
        if not self.gates.wait(gate, LOOK_S):
            self._watch(partial(self.gates.wait, gate), self.late)

    def until(self, wait: Callable[[float], bool], late: Callable[[], list[int]] = list, lost: Lost = list) -> None:
        """Wait for another event: ``wait(timeout_s)`` returns True if it is there. Raises PeerLost as :meth:`meet`.

        ``late`` returns the numbers on the node of those who keep it away, as far as that is known, and ``lost`` those
        of dead ranks that it needs: by default all.
        """
        if not wait(LOOK_S):
            self._watch(wait, late, lost)

    def _watch(self, wait: Callable[[float], bool], who_is_late: Callable[[], list[int]], lost: Lost = list) -> None:
        """Wait on, and check the other ranks meanwhile."""
        with phase(GATE):
            self._wait_on(wait, who_is_late, lost)

    def _wait_on(self, wait: Callable[[float], bool], who_is_late: Callable[[], list[int]], lost: Lost) -> None:
        if self._comes(wait, self.deadline_s, lost):
            return
        late = who_is_late()
        # their wait for other nodes may have begun when this one was nearly over
        if late and all(map(self.is_away, late)) and self._comes(wait, self.deadline_s + 2 * self.roll_s, lost):
            return
        if not wait(0):
            self._lost(late, f"did not come to an exchange for {self.deadline_s:g} s (sync.deadline_s)", False)

    def _comes(self, wait: Callable[[float], bool], seconds: float, lost: Lost) -> bool:
        """Wait for ``seconds``; return True if it is there. Raises PeerLost if a rank has died or reports a loss."""
        # checks are counted, not seconds: a job that was suspended is not late
        for _ in range(max(1, round(seconds / LOOK_S))):
            if wait(0):
                return True
            self._look(wait, lost)
            if wait(LOOK_S):
                return True
        return False

    def _look(self, wait: Callable[[float], bool], lost: Lost) -> None:
        """Raise PeerLost if a rank that a wait needs has died, or one reports a loss."""
        if self.told_at.is_told():
            raise PeerLost("a rank is lost, as another one tells", (), False)
        # ranks are checked before the gate: one that arrived and then ended leaves nobody waiting
        dead = lost(self.dead())
        if dead and not wait(0):
            self._lost(dead, "has died" if len(dead) == 1 else "have died", True)

    def late(self) -> list[int]:
        """Return the ranks that keep the first closed gate closed: others may be late because they wait there."""
        for gate, parties in sorted(self._parties.items()):
            late = set(self.gates.missing(gate)).intersection(parties.ranks) - {self.me}
            if late and not self.gates.wait(gate, 0):
                return sorted(late)
        return []

    def dead(self) -> list[int]:
        """Return the numbers on the node of those ranks that have ended."""
        others = (rank for rank in self.everyone.ranks if rank != self.me)
        return [rank for rank in others if not compiled.sync.is_locked(self.fd, rank)]

    def _lost(self, missing: list[int], how: str, dead: bool) -> None:
        ranks = tuple(self.names[rank] for rank in missing)
        named = f"rank {', '.join(map(str, ranks))}" if ranks else "some rank"
        # a rank that leaves now drops its lock, too: only the first to notice knows the lost rank
        raise PeerLost(f"{named} {how}, and the others cannot go on without it", ranks, self.told_at.tell(), dead)


def size(n_ranks: int) -> int:
    """Return the size of the gates of ``n_ranks`` ranks, in bytes."""
    return int(compiled.sync.n_bytes(n_ranks))
