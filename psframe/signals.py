"""Ctrl-C, and the SIGTERM of a scheduler: ranks that train are asked to leave together, once; twice, they end."""

import os
import signal
from types import FrameType, TracebackType
from typing import Any

from psframe.halt import Halt

#: SIGUSR1 is for launchers that kill at once when they are sent one of the others, and pass this one on
NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
REPEATED = signal.SIGUSR1  # which psframe.run sends until the ranks have left, and which asks once
LEAVE_S = 9  # until a rank that was asked to leave, and has not, is ended by the kernel


class Signals:
    """While this is entered, the first of NUMBERS asks all ranks to leave, by ``halt``, and the next ends this one.

    The next is not REPEATED, which asks once however often it comes.

    Parameters
    ----------
    halt : Halt
    speaks : bool
        Whether this rank tells the user.
    """

    def __init__(self, halt: Halt, speaks: bool):
        self.halt, self.speaks = halt, speaks
        self.before: dict[int, Any] = {}

    def __enter__(self) -> None:
        self.before = {number: signal.signal(number, self._ask) for number in NUMBERS}

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        signal.alarm(0)
        for number, handler in self.before.items():
            if not self.halt.signal or number != REPEATED:
                signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        for each in NUMBERS:
            signal.signal(each, signal.SIG_IGN if each == REPEATED else signal.SIG_DFL)
        signal.alarm(LEAVE_S)  # by the kernel: a step, or a call of MPI, may not come back to Python
        if self.speaks:
            name = signal.Signals(number).name
            text = f"psframe: {name}: leaving after this step and a checkpoint; once more leaves at once\n"
            os.write(2, text.encode())  # print may be under way just now
        self.halt.signal = number
