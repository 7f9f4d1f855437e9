"""Handling of Ctrl-C and a scheduler's SIGTERM (:class:`Signals`): training ranks are asked to leave together.

A second Ctrl-C ends them.
"""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

from psframe.cluster.stop_flag import StopFlag
from psframe.record.flight import RING, SIGNAL

#: SIGUSR1 is for launchers that kill ranks at once on one of the others, but pass this one on
NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
#: signals that count once however often they come: psframe.run sends one until the ranks have left, and a scheduler
#: sends the other to the ranks and to the launcher, which passes it on
REPEATED = (signal.SIGUSR1, signal.SIGTERM)
LEAVE_S = 9  # seconds until the kernel ends a rank that was asked to leave and has not


class Signals:
    """Context in which the first of NUMBERS asks all ranks to leave, by ``halt``; SIGINT after it ends this rank.

    One that comes where there is no ``halt`` is heeded at the next :meth:`heed`.

    Parameters
    ----------
    halt : StopFlag or None
    speaks : bool
        True if this rank reports to the user.
    where : str
        Addition to its message: an MPI may end its ranks before they can print more.
    leaves : callable, optional
        On a rank that the job can do without: called on SIGTERM in place of ``halt``; returns False if it was in vain.
    """

    def __init__(
        self, halt: StopFlag | None, speaks: bool, where: str = "", leaves: Callable[[], bool] = lambda: False
    ):
        self.halt, self.speaks, self.where, self.leaves = halt, speaks, where, leaves
        self.before: dict[int, Any] = {}
        self.number, self.left, self.pid = 0, False, os.getpid()

    def __enter__(self) -> "Signals":
        self.before = {number: signal.signal(number, self._ask) for number in NUMBERS}
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end()

    def end(self) -> None:
        """Handle signals as before the context, since training is over."""
        signal.alarm(0)
        self.heed(None)
        for number, handler in self.before.items():
            signal.signal(number, signal.SIG_IGN if self.left and number in REPEATED else handler)

    def heed(self, halt: StopFlag | None) -> None:
        """Ask by another flag from here on, for the signal that came before, too; by none until the next call."""
        if self.halt is not None and self.halt.signal:
            self.left = True
        self.halt = halt
        if halt is not None and self.number:
            halt.signal = self.number

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self.pid:  # a process that a callback has forked, which a pool ends by SIGTERM
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        RING.note(SIGNAL, number)
        if number == signal.SIGTERM and not self.number and self.leaves():
            self.left = True
            return
        if self.number:  # those of REPEATED keep this handler: Python complains if a pending one has lost it
            return
        self.number = number
        for signum in set(NUMBERS).difference(REPEATED):
            signal.signal(signum, signal.SIG_DFL)
        signal.alarm(LEAVE_S)  # by the kernel: a step or an MPI call may not return to Python
        if self.halt is not None:
            self.halt.signal = number
        if self.speaks:
            name = signal.Signals(number).name
            more = "; once more leaves at once" if number == signal.SIGINT else ""
            where = f"; {self.where}" if self.where else ""
            text = f"psframe: {name}: leaving after this step{more}{where}\n"
            with suppress(OSError):  # nobody reads it any more
                os.write(2, text.encode())  # a print may be in progress
