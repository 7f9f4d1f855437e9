"""Ctrl-C, and the SIGTERM of a scheduler: ranks that train are asked to leave together; a second Ctrl-C ends them."""

import os
import signal
from types import FrameType, TracebackType
from typing import Any

from psframe.cluster.stop_flag import Halt

#: SIGUSR1 is for launchers that kill at once when they are sent one of the others, and pass this one on
NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
#: which ask once however often they come: psframe.run sends one until the ranks have left, and a scheduler the other
#: to ranks and launcher alike, which passes it on
REPEATED = (signal.SIGUSR1, signal.SIGTERM)
LEAVE_S = 9  # until a rank that was asked to leave, and has not, is ended by the kernel


class Signals:
    """While this is entered, the first of NUMBERS asks all ranks to leave, by ``halt``; SIGINT after it ends this one.

    Parameters
    ----------
    halt : Halt
    speaks : bool
        Whether this rank tells the user.
    where : str
        What it tells besides: an MPI may end its ranks before they can say more.
    """

    def __init__(self, halt: Halt, speaks: bool, where: str = ""):
        self.halt, self.speaks, self.where = halt, speaks, where
        self.before: dict[int, Any] = {}
        self.asked = False

    def __enter__(self) -> None:
        self.before = {number: signal.signal(number, self._ask) for number in NUMBERS}

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        signal.alarm(0)
        for number, handler in self.before.items():
            signal.signal(number, signal.SIG_IGN if self.halt.signal and number in REPEATED else handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:  # those of REPEATED stay with this: one may wait for it now, and Python complains of that
            return
        self.asked = True
        for each in set(NUMBERS).difference(REPEATED):
            signal.signal(each, signal.SIG_DFL)
        signal.alarm(LEAVE_S)  # by the kernel: a step, or a call of MPI, may not come back to Python
        if self.speaks:
            name = signal.Signals(number).name
            more = "; once more leaves at once" if number == signal.SIGINT else ""
            where = f"; {self.where}" if self.where else ""
            text = f"psframe: {name}: leaving after this step{more}{where}\n"
            os.write(2, text.encode())  # print may be under way just now
        self.halt.signal = number
