"""Ranks of a group (:class:`Meeting`): memory of those of a node, watched while one waits."""

import mmap
import os
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch.distributed as dist

from psframe import compiled
from psframe.cluster import node_channel
from psframe.cluster.gates import LOOK_S, PeerLost, Rendezvous, size
from psframe.errors import reason
from psframe.memory import arrays
from psframe.torch.moves import LINE
from psframe.torch.nodes import meet
from psframe.torch.record import PLACEMENT

PAGE = 4096
#: rooms of a group; most bytes of a rank's slot in one, and of all slots of a group together
ROOMS, SLOT_BYTES, GROUP_BYTES = 4, 1 << 18, 32 << 20
SPINS = 4000  # turns of a wait where every rank has a core
ENDED, LATE, TOLD = 1, 2, 3
#: longest waits for the name of a lost rank: where another one has noticed its end; where only the node's leader, whose
#: time-out may end later, hears for whom other nodes wait
TOLD_S, HEARD_S = 0.1, 1.0


class Meeting:
    """Memory of a group's ranks on a node, a lock that shows that a rank lives, and waits that notice its end.

    Every rank of the group must make one. The memory has no name: nothing of it stays, however ranks end.

    Parameters
    ----------
    store : torch.distributed.Store
        Of the group alone.
    me, n : int
        This rank's number in the group, and their number.
    ranks : sequence of int
        Numbers of the group's ranks in the job, for messages.
    name : str
        Name of the group, for messages.

    Attributes
    ----------
    rooms : psframe.compiled.rooms.Rooms
    memory : ndarray of uint8
        All of it.
    slot_bytes : int
        Bytes of a rank's part of a chunk.
    store : torch.distributed.Store
        Of this group alone, also where it is made again.
    nodes : Nodes
    absent : callable
        Returns ranks of other nodes that are waited for.

    Raises
    ------
    DistBackendError
        There is too little memory.
    """

    def __init__(self, store: Any, me: int, n: int, ranks: Sequence[int], name: str):
        self.me, self.n, self.ranks, self.name = me, n, tuple(ranks), name
        self.slot_bytes, n_bytes, head = size_of(n)
        # a group may be made again with the keys of one before it in the store
        self.store = dist.PrefixStore(str(store.add(f"made/{me}", 1)), store)
        self.nodes = meet(self.store, me, n)
        here = self.nodes.ranks[self.nodes.here]
        if len(here) == 1:
            self.memory, fd = np.frombuffer(mmap.mmap(-1, n_bytes), np.uint8), -1
        else:
            self.memory, fd = self._open(n_bytes)
        self.rendezvous = Rendezvous(self.memory[: head - PAGE], fd, here.index(me), here)
        #: why ranks are lost, for each if it is, and what another node has said about it
        self._lost = self.memory[head - PAGE : head]
        self._said = self._lost[1 + n :]
        self.absent: Callable[[], Sequence[int]] = tuple
        spins = SPINS if self.nodes.n_cores >= len(here) else 0
        self.rooms = compiled.rooms.Rooms(self.memory[head:], n, me, here, ROOMS, self.slot_bytes, spins)
        if len(here) > 1:
            self._meet_here()  # every rank holds its lock before another one looks whether it is alive

    def _meet_here(self) -> None:
        try:
            self.nodes.link.gather(b"")
            self.nodes.link.tell()
        except (OSError, PeerLost, node_channel.LeaderEnded) as error:
            raise dist.DistBackendError(
                f"the ranks of {self.name} on this node must all begin, and one has ended ({reason(error)})"
            ) from None

    def share(self, n_bytes: int) -> np.ndarray:
        """Return more memory that this node's ranks share, uint8 (n_bytes,), zeroed; all of them must call."""
        if len(self.nodes.ranks[self.nodes.here]) == 1:
            return np.zeros(n_bytes, np.uint8)
        memory, fd = self._open(n_bytes)
        os.close(fd)
        return memory

    def _open(self, n_bytes: int) -> tuple[np.ndarray, int]:
        try:
            return self.nodes.link.share_open(n_bytes, place=_place, take=False)
        except (OSError, PeerLost, node_channel.LeaderEnded) as error:
            raise dist.DistBackendError(
                f"the ranks of {self.name} on this node need {n_bytes:,} bytes of memory to share, and do not get them "
                f"({reason(error) or 'a rank has ended'})"
            ) from None

    def until(self, wait: Callable[[float], bool], timeout_s: float, work: Any) -> None:
        """Wait for a work until ``wait(timeout_s)`` returns True.

        Raises
        ------
        DistBackendError
            A rank that it needs has ended, which is noticed within a second, or ``timeout_s`` have passed.
        """
        self.rendezvous.deadline_s = timeout_s
        try:
            self.rendezvous.until(wait, work.late, work.lost)
        except PeerLost as lost:
            raise dist.DistBackendError(self._sentence(lost, timeout_s, work.what())) from None

    def _sentence(self, lost: PeerLost, timeout_s: float, what: str) -> str:
        if missing := {*lost.ranks, *(() if lost.dead else self.absent())}:
            self.give_up(sorted(missing), lost.dead)
        until = time.monotonic() + (TOLD_S if missing or lost.dead else HEARD_S)
        while not self._lost[0] and time.monotonic() < until:
            time.sleep(LOOK_S / 50)
        if self._lost[0] == TOLD:
            return bytes(self._said).rstrip(b"\0").decode(errors="replace")
        ranks = [self.ranks[rank] for rank in range(self.n) if self._lost[1 + rank]]
        named = f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}" if ranks else "a rank"
        if self._lost[0] == ENDED:
            return f"{named} {'have' if len(ranks) > 1 else 'has'} ended, and {what} cannot go on without it"
        return f"{named} did not come to {what} within the timeout of {timeout_s:g} s"

    def give_up(self, ranks: Sequence[int], have_ended: bool, said: str = "") -> None:
        """Let the others on this node know that the group has no use any more, because of ranks of it.

        ``said`` is another node's sentence on it, which they then raise as it is.
        """
        if not self._lost[0]:
            self._lost[1:][list(ranks)] = 1
            text = np.frombuffer(said.encode()[: len(self._said)], np.uint8)
            self._said[: len(text)] = text
            self._lost[0] = TOLD if said else ENDED if have_ended else LATE
        self.rendezvous.told_at.tell()

    def connect(self, rank: int) -> Any:
        """Return a socket to the listener of a rank; raises DistBackendError if it has ended."""
        found = self.nodes.connect(rank)
        if found is None:
            raise dist.DistBackendError(f"rank {self.ranks[rank]} of {self.name} has ended, and no message reaches it")
        return found

    def close(self) -> None:
        """Give back the descriptors; the memory goes with the last tensor and rank that has it."""
        for listener in self.nodes.listeners:
            listener.close()
        self.nodes.link.close()
        self.rendezvous.close()


def size_of(n: int) -> tuple[int, int, int]:
    """Return the bytes of a slot, of all memory, and of what comes before the rooms, for a group of ``n`` ranks."""
    each = min(SLOT_BYTES, GROUP_BYTES // (ROOMS * (n + 1)))
    least = -(-LINE * n // PAGE) * PAGE  # a part of a slot for each rank
    slot_bytes = max(PAGE, each // PAGE * PAGE, least)
    head = -(-size(n) // PAGE) * PAGE + PAGE
    return slot_bytes, head + int(compiled.rooms.Rooms.n_bytes(n, ROOMS, slot_bytes)), head


def _place(memory: np.ndarray) -> None:
    """Bind the pages of shared memory as the environment asks; the first rank calls. Raises UserError."""
    if asked := os.environ.get(PLACEMENT):
        placement, site = arrays.placed(asked)
        placement.bind(memory, site)
        for note in site.notes:
            warnings.warn(note, RuntimeWarning, stacklevel=2)
