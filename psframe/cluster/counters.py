"""Counters of a node's ranks in shared memory (:class:`NodeCounters`), with waits that notice dead or stuck ranks."""

from collections.abc import Callable
from functools import partial

import numpy as np

from psframe import compiled
from psframe.cluster.gates import LOOK_S, Rendezvous

WRAP = (1 << 32) - 1  # counters have 32 bits


class NodeCounters:
    """:class:`psframe.compiled.sync.Counters`; a wait raises PeerLost as :meth:`Rendezvous.meet` does.

    Parameters
    ----------
    memory : ndarray of uint8
        At least :meth:`n_bytes` of ``n`` counters, page-aligned, shared by the ranks.
    n : int
    meeting : Rendezvous
        Ranks of the node.
    """

    def __init__(self, memory: np.ndarray, n: int, meeting: Rendezvous):
        self._counters, self._meeting = meeting.Counters(memory, n), meeting
        self.load, self.add, self.unlock = self._counters.load, self._counters.add, self._counters.unlock

    def lacks(self, number: int, value: int) -> bool:
        """Return True if a counter has not reached ``value``, modulo 2**32."""
        return not self._counters.wait(number, value & WRAP, 0)

    @staticmethod
    def n_bytes(n: int) -> int:
        """Return the bytes of ``n`` counters."""
        return n * int(compiled.sync.Counters.EACH)

    def until(self, number: int, value: int, late: Callable[[], list[int]] = list) -> None:
        """Wait until a counter has reached ``value``, modulo 2**32; ``late`` is as in :meth:`Rendezvous.until`."""
        self._counters.spins = self._meeting.gates.spins
        if not self._counters.wait(number, value & WRAP, LOOK_S):
            self._meeting.until(partial(self._counters.wait, number, value & WRAP), late)

    def lock(self, number: int) -> None:
        """Acquire a counter's lock."""
        if not self._counters.lock(number, LOOK_S):
            self._meeting.until(partial(self._counters.lock, number))
