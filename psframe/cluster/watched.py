"""Communicators and windows whose calls the flight recorder notes (:class:`Watched`, :class:`Window`).

So a rank that waits in a call of MPI is known, with the call, since when, its peer and its bytes.
"""

from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from psframe.record.flight import CALLS, RING
from psframe.record.flight import MPI as FIRST

#: calls with a root, or a peer, as their second or third argument
PEERS = ("bcast", "reduce", "gather", "scatter", "send", "ssend", "rsend", "recv", "sendrecv")


def _noted(owner: type, name: str, method: str) -> Callable[..., Any]:
    """Return a method that notes a call of MPI: with its root or peer, -1 for none, and the bytes that it is given."""
    kind, has_peer = FIRST + CALLS.index(name), method.lower().rstrip("v") in PEERS

    def noted(self: Any, *given: Any, **named: Any) -> Any:
        numbers = (number for number in (*given[1:3], *named.values()) if isinstance(number, int))
        peer = next(numbers, -1) if has_peer else -1
        depth = RING.enter(kind, peer, getattr(given[0], "nbytes", 0) if given else 0)
        try:
            return getattr(owner, method)(self, *given, **named)  # looked up here: without MPI there is none
        finally:
            RING.leave(depth)

    return noted


class Window(MPI.Win):
    """Memory for one-sided operations that notes its calls."""


class Watched(MPI.Intracomm):
    """Communicator that notes its calls."""

    def Dup(self, info: Any = MPI.INFO_NULL) -> Any:
        """Return a plain communicator of the same ranks, to be registered. All ranks must call."""
        return MPI.Intracomm(super().Dup(info))

    def window(self, memory: Any) -> Window:
        """Return a window of this rank's memory, an array that may be empty. All ranks must call."""
        return Window(MPI.Win.Create(memory if memory.size else None, memory.itemsize, comm=self))


for _name in CALLS:
    _owner, _, _method = _name.rpartition(".")
    if _owner == "":
        setattr(Watched, _method, _noted(MPI.Intracomm, _name, _method))
    elif _owner == "Win":
        setattr(Window, _method, _noted(MPI.Win, _name, _method))
