"""Python stacks of this process (:class:`Stacks`), which it writes when its keeper or a user asks for them by a signal.

Python's ``faulthandler`` reads a stack without the interpreter's lock. That of a thread which calls and returns
meanwhile may be half made, and the process ends with a segmentation fault: once in some thousand signals. So the
interpreter answers the first signal, between two instructions of the main thread. While this is in a call that does
not return, its stack stands still, and ``faulthandler`` writes it at a second signal.
"""

import faulthandler
import fcntl
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FrameType

from psframe.cluster.flight.seen import FIRST, SECOND
from psframe.cluster.node_channel import nameless

MOST_FRAMES = 100  # of a thread, as ``faulthandler`` has


class Stacks:
    """File in memory for the stacks of this process, which the main thread makes.

    Parameters
    ----------
    wrote : callable
        Called by the main thread after a first signal.

    Attributes
    ----------
    fd : int
        Descriptor of the file; -1 if that is denied.
    """

    def __init__(self, wrote: Callable[[], object]):
        self.fd, self._wrote = _file(), wrote
        signal.signal(FIRST, self._answer)
        faulthandler.unregister(SECOND)  # its handler is replaced here, which it would not notice
        signal.signal(SECOND, lambda number, frame: None)  # the wake-up descriptor tells of both
        if self.fd >= 0:
            faulthandler.register(SECOND, file=self.fd, all_threads=False, chain=True)

    def _answer(self, number: int, frame: FrameType | None) -> None:
        with suppress(OSError):
            if self.fd >= 0 and not os.fstat(self.fd).st_size:  # the second signal was sooner
                os.write(self.fd, "\n".join(_lines(frame)).encode(errors="replace"))
        self._wrote()

    def leave(self) -> None:
        """Write nothing any more, in a process that was forked."""
        self.fd = -1
        faulthandler.unregister(SECOND)


def _file() -> int:
    with suppress(OSError):
        fd = nameless()
        fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)  # written at its end, wherever that is by then
        return fd
    return -1


def _lines(frame: FrameType | None) -> Iterator[str]:
    """Return the stacks of all threads as ``faulthandler`` writes them, that of the main one, ``frame``, at the end."""
    own = threading.get_ident()
    for ident, each in sys._current_frames().items():
        if ident != own:
            yield from _stack(f"Thread 0x{ident:016x}", each)
    yield from _stack(f"Current thread 0x{own:016x}", frame)


def _stack(name: str, frame: FrameType | None) -> Iterator[str]:
    yield f"{name} (most recent call first):"
    for _ in range(MOST_FRAMES):
        if not frame:
            break
        yield f'  File "{frame.f_code.co_filename}", line {frame.f_lineno} in {frame.f_code.co_name}'
        frame = frame.f_back
    yield ""
