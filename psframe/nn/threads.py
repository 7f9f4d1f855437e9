"""Threads of one rank that share the work of its kernels (:class:`Threads`)."""

import os
import threading
from collections.abc import Callable
from typing import Any, ClassVar

from psframe.nn import subnormal


class Threads:
    """Threads that run the parts of a kernel concurrently.

    They start at the first use, and again in a forked process. Idle threads block on locks; they do not spin. All
    compute in the arithmetic of the caller (:mod:`psframe.nn.subnormal`).

    Parameters
    ----------
    n : int
        Number of threads, including the caller's.

    Attributes
    ----------
    instead : callable, optional
        Called with a kernel and the arguments of one part, in place of running it; of all threads of this process.
    """

    instead: ClassVar[Callable[..., None] | None] = None

    def __init__(self, n: int = 1):
        self.n = n
        self._pid = 0
        self._failed: BaseException | None = None
        self._task: tuple[Callable[..., Any], tuple[Any, ...], int]

    def run(self, kernel: Callable[..., Any], *args: Any) -> None:
        """Call ``kernel(part, n, *args)`` for every part in range(n); return after the last one."""
        if self.instead:
            self.instead(kernel, 0, self.n, *args)
            return
        if self.n == 1:
            kernel(0, 1, *args)
            return
        if self._pid != os.getpid():
            self._start()
        self._task = kernel, args, subnormal.mode()
        for lock in self._begin:
            lock.release()
        self._do(0)
        for lock in self._end:
            lock.acquire()
        if self._failed:
            failed, self._failed = self._failed, None
            raise failed

    def run_phases(self, n_phases: int, kernel: Callable[..., Any], *args: Any) -> None:
        """Call ``kernel(part, n, phase, *args)`` for all parts of each phase in turn; with one thread, only once, with
        phase -1, which means all phases."""
        if self.instead:
            self.instead(kernel, 0, self.n, 0, *args)
            return
        if self.n == 1:
            kernel(0, 1, -1, *args)
            return
        for phase in range(n_phases):
            self.run(kernel, phase, *args)

    def _start(self) -> None:
        self._pid = os.getpid()
        self._begin = [threading.Lock() for _ in range(1, self.n)]
        self._end = [threading.Lock() for _ in range(1, self.n)]
        for lock in (*self._begin, *self._end):
            lock.acquire()
        for part in range(1, self.n):
            threading.Thread(target=self._serve, args=(part,), name=f"psframe-{part}", daemon=True).start()

    def _serve(self, part: int) -> None:
        begin, end = self._begin[part - 1], self._end[part - 1]
        while True:
            begin.acquire()
            self._do(part)
            end.release()

    def _do(self, part: int) -> None:
        kernel, args, mode = self._task
        try:
            if part:
                subnormal.take(mode)
            kernel(part, self.n, *args)
        except BaseException as error:  # raised again by the caller of run
            self._failed = error
