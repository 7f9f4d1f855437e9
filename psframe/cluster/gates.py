"""Where the ranks of a node wait for each other without MPI, and notice that one of them has died or is stuck."""

import fcntl
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from psframe import compiled

Wait = Literal["auto", "spin", "block"]

LOOK_S = 0.25  # between two looks at who is alive, while waiting
SPINS = {"auto": 4000, "spin": 1 << 60, "block": 0}  # of `auto` where every rank has a core: some 100 microseconds
DEADLINE_S = 1800.0

#: a worker's gradients are there, by halves of the slots; a chunk of them is summed; a step is whole
READY, SUMMED, COMMITTED, TOGETHER = (0, 1), (2, 3), 4, 5
#: who has waited for other nodes to the deadline calls them, and waits for answers for this share of that, or at least
ROLL_SHARE, ROLL_S = 0.1, 2.0


class PeerLost(Exception):
    """A rank that others wait for has died, or has not come in time.

    Attributes
    ----------
    ranks : tuple of int
        Which, by their numbers in the job.
    speaks : bool
        Whether this rank is to tell the user: the first of its node to notice.
    dead : bool
        Whether the rank has ended, as far as this one knows; else it may be stuck.
    """

    def __init__(self, message: str, ranks: tuple[int, ...], speaks: bool, dead: bool = True):
        super().__init__(message)
        self.ranks, self.speaks, self.dead = ranks, speaks, dead


@dataclass(frozen=True)
class Parties:
    """Those ranks of a node that arrive at a gate.

    Attributes
    ----------
    ranks : tuple of int
        By their numbers on the node.
    n : int
    mine : bool
        Whether this rank is one of them.
    """

    ranks: tuple[int, ...]
    n: int
    mine: bool


class Rendezvous:
    """The gates of a node, and a lock on a byte of their memory for each rank, which the kernel drops at its death.

    Parameters
    ----------
    memory : ndarray of uint8
        Shared by the node's ranks, at least :func:`size` bytes, zeroed when it was new.
    fd : int
        Of that memory; stays open, since closing it would drop the lock. Not used by a rank that is alone on its node.
    me : int
        This rank's number on the node.
    members : sequence of int
        The numbers in the job of the node's ranks.

    Attributes
    ----------
    n_cores : int
        That the node's ranks have together.
    is_away : callable
        Whether a rank of this node waits for other nodes: it has the same deadline, and then ``roll_s`` to find out who
        it is that does not come.
    """

    def __init__(self, memory: np.ndarray, fd: int, me: int, members: Sequence[int]):
        self.fd, self.me, self.members = fd, me, tuple(members)
        self.gates = compiled.sync.Gates(memory, len(members), me)
        self.told_at = self.gates  # where the first to notice a loss is known
        self.everyone = self.among(tuple(range(len(members))))
        self._parties: dict[int, Parties] = {}  # of each gate's last passage
        self.deadline_s = DEADLINE_S
        self.is_away: Callable[[int], bool] = lambda rank: False
        self.n_cores = len(os.sched_getaffinity(0))
        if self.everyone.n > 1:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, me)

    def close(self) -> None:
        """Drop this rank's lock. Nobody waits here afterwards."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def configure(self, wait: Wait, deadline_s: float, n_cores: int) -> None:
        """Say how to wait, and how many cores the ranks of this node have: fewer than ranks, and nobody spins."""
        self.gates.spins = SPINS[wait] if n_cores >= self.everyone.n or wait != "auto" else 0
        self.deadline_s, self.n_cores = deadline_s, n_cores

    @property
    def roll_s(self) -> float:
        """Seconds that a call to the other nodes may take."""
        return max(ROLL_S, ROLL_SHARE * self.deadline_s)

    def among(self, ranks: tuple[int, ...]) -> Parties:
        """Return ranks of this node, by their numbers on it, as those that arrive at a gate."""
        return Parties(ranks, len(ranks), self.me in ranks)

    def meet(self, gate: int, parties: Parties, waits: bool = True) -> None:
        """Pass a gate: arrive, if this rank is one of the ``parties``, and wait until all of these have, or not.

        Every rank of the node must call, for each passage. PeerLost where some rank of the node has died, or the
        deadline has passed.
        """
        self._parties[gate] = parties
        if not self.gates.meet(gate, parties.n, parties.mine, waits, LOOK_S):
            self._watch(partial(self.gates.wait, gate), self.late)

    def together(self) -> None:
        """Wait until every rank of the node is here."""
        self.meet(TOGETHER, self.everyone)

    def wait(self, gate: int) -> None:
        """Wait for the last passage that was begun."""
        if not self.gates.wait(gate, LOOK_S):
            self._watch(partial(self.gates.wait, gate), self.late)

    def until(self, wait: Callable[[float], bool]) -> None:
        """Wait for something else: ``wait(timeout_s)`` returns whether it is there. PeerLost as above."""
        if not wait(LOOK_S):
            self._watch(wait, list)

    def _watch(self, wait: Callable[[float], bool], who_is_late: Callable[[], list[int]]) -> None:
        """Wait on, with an eye on the other ranks."""
        if self._comes(wait, self.deadline_s):
            return
        late = who_is_late()
        # their wait may have begun when this one was nearly over
        if late and all(map(self.is_away, late)) and self._comes(wait, self.deadline_s + 2 * self.roll_s):
            return
        if not wait(0):
            self._lost(late, f"did not come to an exchange for {self.deadline_s:g} s (sync.deadline_s)", False)

    def _comes(self, wait: Callable[[float], bool], seconds: float) -> bool:
        """Wait for so long; return whether it is there. PeerLost where a rank has died, or another one tells."""
        # looks are counted, not seconds: a job that was stopped as a whole has not been late
        for _ in range(max(1, round(seconds / LOOK_S))):
            if wait(0):
                return True
            if self.told_at.is_told():
                raise PeerLost("a rank is lost, as another one tells", (), False)
            # they are looked at before the gate: who arrived and ended then has not left anyone waiting
            dead = self._dead()
            if dead and not wait(0):
                self._lost(dead, "has died" if len(dead) == 1 else "have died", True)
            if wait(LOOK_S):
                return True
        return False

    def late(self) -> list[int]:
        """Return who keeps the first gate closed that is: others may be late because they wait there."""
        for gate, parties in sorted(self._parties.items()):
            late = set(self.gates.missing(gate)).intersection(parties.ranks) - {self.me}
            if late and not self.gates.wait(gate, 0):
                return sorted(late)
        return []

    def _dead(self) -> list[int]:
        others = (rank for rank in self.everyone.ranks if rank != self.me)
        return [rank for rank in others if not compiled.sync.is_locked(self.fd, rank)]

    def _lost(self, missing: list[int], how: str, dead: bool) -> None:
        ranks = tuple(self.members[rank] for rank in missing)
        named = f"rank {', '.join(map(str, ranks))}" if ranks else "some rank"
        # a rank that leaves now drops its lock, too: only the first to notice knows who was lost
        raise PeerLost(f"{named} {how}, and the others cannot go on without it", ranks, self.told_at.tell(), dead)


def size(n_ranks: int) -> int:
    """Return the bytes that the gates of so many ranks take."""
    return int(compiled.sync.n_bytes(n_ranks))
