"""Order in which futures are told that their works have ended (:class:`Telling`), the same on all ranks.

What follows on a future may begin a collective, as a communication hook's does that sums in several rounds. Called as
soon as the exchange has come, it would begin before the program's next collective on one rank, and after it on another.
So it is called at a place in the program: where the work or the future is waited for, or asked for, or where the
backward pass ends that has begun the work, in the order of their beginnings.

The thread of :class:`~psframe.torch.progress.ProgressEngine` calls the rest: outside of backward passes soon, so there
it should begin no collective that is not waited for; within one, where its thread waits in a way that is unknown here.
"""

import sys
import threading
from functools import partial
from time import monotonic
from types import FrameType
from typing import Any

import torch

#: seconds for which a thread must stand at a place to be taken for one that waits there: in Python, as a hook does, and
#: in PyTorch's engine, which may compute for as long
STANDS_S, ENGINE_STANDS_S = 1.0, 30.0
ENGINE = "_engine_run_backward"  # the function of Python's that goes into it


class Pass:
    """Backward pass of this thread, and the works that it has begun, in their order."""

    def __init__(self) -> None:
        self.works: dict[Any, None] = {}
        self.thread = threading.current_thread()
        self._place: object = None
        self._since = 0.0

    def waits(self) -> bool:
        """Return True if the pass waits in a way unknown here, or has gone with its thread."""
        frame = sys._current_frames().get(self.thread.ident or 0)
        if frame is None or not self.thread.is_alive() or _waits_for_future(frame):
            return True
        if self._place != (place := (id(frame), frame.f_lasti)):
            self._place, self._since = place, monotonic()
        limit = ENGINE_STANDS_S if frame.f_code.co_name == ENGINE else STANDS_S
        return monotonic() - self._since > limit


def _waits_for_future(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__") == torch.futures.__name__ and frame.f_code.co_name.startswith("wait")


class Telling:
    """Works whose futures have not been told.

    Parameters
    ----------
    lock : RLock
        Held while works are ended.
    """

    def __init__(self, lock: Any):
        self._lock = lock
        self._untold: dict[Any, None] = {}  # works that have ended
        self._passes: dict[int, Pass] = {}  # backward passes in progress, by their graph tasks

    def later(self, work: Any) -> None:
        """Take note of a work that has ended and has a future."""
        with self._lock:
            self._untold[work] = None

    def has_told(self, work: Any) -> None:
        with self._lock:
            self._untold.pop(work, None)

    @property
    def has_left(self) -> bool:
        return bool(self._untold)

    def left(self) -> list[Any]:
        """Return the works that may be told now, though nobody waits for them in a way known here.

        There are none of threads in a backward pass that goes on.
        """
        with self._lock:
            busy = {each.thread.ident for each in self._passes.values() if not each.waits()}
            return [work for work in self._untold if work.thread not in busy]

    def begun(self, work: Any) -> None:
        """Take note of a work that is begun, or whose future is asked for."""
        self.forget_failed()
        task = torch._C._current_graph_task_id()
        if task != -1 and torch._C._current_autograd_node() is not None:
            if task not in self._passes:
                with self._lock:
                    self._passes[task] = Pass()
                # DDP's callback, which comes after it, waits for them in C++
                torch.autograd.Variable._execution_engine.queue_callback(partial(self._end, task))
            self._passes[task].works[work] = None

    def forget_failed(self) -> None:
        """Forget passes that have raised errors, which this thread has left."""
        if self._passes and torch._C._current_graph_task_id() == -1:
            me = threading.current_thread()
            with self._lock:
                self._passes = {task: each for task, each in self._passes.items() if each.thread is not me}

    def _end(self, task: int) -> None:
        """End what this thread's passes have begun, also in what followed on it.

        A pass within another one, as of a checkpoint, may be the one at whose end DDP waits for the works of both.
        """
        try:
            me = threading.current_thread()
            with self._lock:
                mine = [one for one in self._passes.values() if one.thread is me]
            for one in mine:
                while one.works:
                    work = next(iter(one.works))
                    del one.works[work]
                    work.finish()
                    if work.error is not None:
                        raise work.error  # C++ would take the error of a future of Python for its value
        finally:
            with self._lock:
                self._passes.pop(task, None)
