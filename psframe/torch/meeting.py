"""Ranks of a group in shared memory (:class:`Meeting`): found by the store of PyTorch, watched while one waits."""

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
from psframe.torch.record import PLACEMENT

PAGE = 4096
#: rooms of a group; most bytes of a rank's slot in one, and of all slots of a group together
ROOMS, SLOT_BYTES, GROUP_BYTES = 4, 1 << 18, 32 << 20
SPINS = 4000  # turns of a wait where every rank has a core
TOLD_S = 0.1  # longest wait for the name of a lost rank, which another one has noticed


class Meeting:
    """Memory that the ranks of a group share, a lock that shows that a rank lives, and waits that notice its end.

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
    listener : socket
        Takes the messages of other ranks, from point to point.

    Raises
    ------
    DistBackendError
        The ranks do not share memory, or there is too little.
    """

    def __init__(self, store: Any, me: int, n: int, ranks: Sequence[int], name: str):
        self.me, self.n, self.ranks, self.name = me, n, tuple(ranks), name
        self.slot_bytes, n_bytes, head = size_of(n)
        self.listener, address = node_channel.listen(max(n, 1))
        self.listener.settimeout(0)
        memory, fd, n_cores = self._share(store, n_bytes, address)
        self.rendezvous = Rendezvous(memory[: head - PAGE], fd, me, range(n))
        self.rendezvous.n_cores = n_cores
        self.memory = memory
        self._lost = memory[head - PAGE : head].view(np.int64)[:1]  # number of a rank that is lost, from 1
        spins = SPINS if n_cores >= n else 0
        self.rooms = compiled.rooms.Rooms(memory[head:], n, me, ROOMS, self.slot_bytes, spins)

    def _share(self, store: Any, n_bytes: int, address: str) -> tuple[np.ndarray, int, int]:
        """Return memory of all ranks, its descriptor, and the number of cores that they have together."""
        cores = sorted(os.sched_getaffinity(0))
        self.addresses, self.link = [address], node_channel.Link([], True)
        if self.n == 1:
            return np.frombuffer(mmap.mmap(-1, n_bytes), np.uint8), -1, len(cores)
        # a group may be made again with the keys of one before it in the store
        store = dist.PrefixStore(str(store.add(f"made/{self.me}", 1)), store)
        sockets = []
        if self.me == 0:
            server, where = node_channel.listen(self.n)
            store.set("where", where[1:])
        else:
            found = node_channel.connect("\0" + store.get("where").decode())
            sockets = [found] if found else []
        joined = bool(sockets) or self.me == 0
        store.set(f"rank/{self.me}", f"{address[1:]} {int(joined)} {','.join(map(str, cores))} {os.uname().nodename}")
        every = [word.decode().split(" ", 3) for word in _all(store, [f"rank/{rank}" for rank in range(self.n)])]
        self._check_one_node([(int(there), host) for _, there, _, host in every])
        if self.me == 0:
            sockets = node_channel.accept(server, self.n - 1)
            server.close()
        self.link = node_channel.Link(sockets, self.me == 0)
        memory, fd = self._open(n_bytes)
        self.addresses = ["\0" + where for where, *_ in every]
        return memory, fd, len({core for _, _, cores, _ in every for core in cores.split(",")})

    def share(self, n_bytes: int) -> np.ndarray:
        """Return more memory that the ranks share, uint8 (n_bytes,), zeroed; all of them must call."""
        if self.n == 1:
            return np.zeros(n_bytes, np.uint8)
        memory, fd = self._open(n_bytes)
        os.close(fd)
        return memory

    def _open(self, n_bytes: int) -> tuple[np.ndarray, int]:
        try:
            return self.link.share_open(n_bytes, place=_place, take=False)
        except (OSError, PeerLost, node_channel.LeaderEnded) as error:
            raise dist.DistBackendError(
                f"the {self.n} ranks of {self.name} need {n_bytes:,} bytes of memory to share, and do not get them "
                f"({reason(error) or 'a rank has ended'})"
            ) from None

    def _check_one_node(self, every: Sequence[tuple[int, str]]) -> None:
        away = [rank for rank, (there, _) in enumerate(every) if not there]
        if away:
            raise dist.DistBackendError(
                f"ranks of a psframe group must share memory, got rank {self.ranks[0]} on {every[0][1]} and rank "
                f"{self.ranks[away[0]]} on {every[away[0]][1]}; take the backend gloo over several nodes, or a group "
                "for each node"
            )

    def until(self, wait: Callable[[float], bool], timeout_s: float, what: str, late: Callable[[], list[int]]) -> None:
        """Wait until ``wait(timeout_s)`` returns True.

        Raises
        ------
        DistBackendError
            A rank has ended, which is noticed within a second, or ``timeout_s`` have passed. ``what`` says in what.
        """
        self.rendezvous.deadline_s = timeout_s
        try:
            self.rendezvous.until(wait, late)
        except PeerLost as lost:
            raise dist.DistBackendError(self._sentence(lost, timeout_s, what)) from None

    def _sentence(self, lost: PeerLost, timeout_s: float, what: str) -> str:
        if lost.ranks:
            self._lost[0] = (lost.ranks[0] + 1) * (1 if lost.dead else -1)
        until = time.monotonic() + TOLD_S
        while not self._lost[0] and time.monotonic() < until:
            time.sleep(LOOK_S / 50)
        number, is_dead = abs(int(self._lost[0])) - 1, self._lost[0] > 0
        named = f"rank {self.ranks[number]}" if number >= 0 else "a rank"
        if is_dead:
            return f"{named} has ended, and {what} cannot go on without it"
        return f"{named} did not come to {what} within {timeout_s:g} s"

    def give_up(self, number: int) -> None:
        """Let the others, who wait, know that the group has no use any more, because of a rank."""
        self._lost[0] = -(number + 1)
        self.rendezvous.told_at.tell()

    def connect(self, rank: int) -> Any:
        """Return a socket to the listener of a rank; raises DistBackendError if it has ended."""
        found = node_channel.connect(self.addresses[rank])
        if found is None:
            raise dist.DistBackendError(f"rank {self.ranks[rank]} of {self.name} has ended, and no message reaches it")
        return found

    def close(self) -> None:
        """Give back the descriptors; the memory goes with the last tensor and rank that has it."""
        self.listener.close()
        self.link.close()
        self.rendezvous.close()


def size_of(n: int) -> tuple[int, int, int]:
    """Return the bytes of a slot, of all memory, and of what comes before the rooms, for a group of ``n`` ranks."""
    each = min(SLOT_BYTES, GROUP_BYTES // (ROOMS * (n + 1)))
    slot_bytes = max(PAGE, each // PAGE * PAGE)
    head = -(-size(n) // PAGE) * PAGE + PAGE
    return slot_bytes, head + int(compiled.rooms.Rooms.n_bytes(n, ROOMS, slot_bytes)), head


def _place(memory: np.ndarray) -> None:
    """Bind the pages of shared memory as the environment asks; the first rank calls. Raises UserError."""
    if asked := os.environ.get(PLACEMENT):
        placement, site = arrays.placed(asked)
        placement.bind(memory, site)
        for note in site.notes:
            warnings.warn(note, RuntimeWarning, stacklevel=2)


def _all(store: Any, keys: list[str]) -> list[bytes]:
    """Return the values of keys, which the store waits for."""
    found = store.multi_get(keys) if store.has_extended_api() else [store.get(key) for key in keys]
    return list(found)
