"""Progress of all groups of a process (:class:`ProgressEngine`): whoever waits for one exchange lets all go on."""

import threading
import time
from functools import partial
from typing import Any

import torch.distributed as dist

from psframe.cluster.gates import LOOK_S
from psframe.torch.telling import Telling

#: seconds of a wait for one group while exchanges of others are in progress
TURN_S = 0.0005
#: seconds after which a thread lets exchanges go on that nobody waits for, or that are waited for in ways unknown here
IDLE_S = 0.02


class ProgressEngine:
    """The exchanges that this process has begun and not ended.

    Each goes on where a thread waits for any of them, asks for its state, or begins another one. Only where none of
    this happens for a while, a thread of its own lets them go on: where something else is waited for meanwhile, or a
    future of PyTorch's own that follows one.

    Attributes
    ----------
    lock : RLock
        Held while works are ended, and by nobody who waits.
    telling : Telling
        Decides when what follows on a work is called.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.groups: list[Any] = []
        self.telling = Telling(self.lock)
        self._has_begun = threading.Event()
        self._turns = 0
        self._watch: threading.Thread | None = None

    def add(self, group: Any) -> None:
        with self.lock:
            self.groups = [*self.groups, group]

    def remove(self, group: Any) -> None:
        self.telling.forget_failed()
        with self.lock:
            self.groups = [other for other in self.groups if other is not group]

    def began(self, work: Any) -> None:
        """Take note of a new work that nobody waits for yet."""
        self._turns += 1
        self.telling.begun(work)
        self._watch_over()

    def tell_later(self, work: Any) -> None:
        """Take note of a work that has ended, and whose future is to be told."""
        self.telling.later(work)
        self._watch_over()

    def _watch_over(self) -> None:
        """Let a thread look after works that nobody waits for."""
        if not self._has_begun.is_set():
            if self._watch is None:
                self._watch = threading.Thread(target=self._go_on, name="psframe", daemon=True)
                self._watch.start()
            self._has_begun.set()

    def poll(self) -> None:
        """Let everything go on that can without a wait."""
        self._turns += 1
        self._let_go_on()

    def _let_go_on(self) -> None:
        for group in self.groups:
            group.poll()

    def until(self, work: Any, timeout_s: float) -> None:
        """Wait until a work has ended, in an error if a rank of its group ends, or ``timeout_s`` pass.

        A short exchange may be there before a long one that was begun before it; works end in their order.
        """
        group = work.group
        self._turns += 1
        self.telling.forget_failed()
        if len(self.groups) == 1 and not group.messages and work.step(LOOK_S):  # as nearly always, and quick
            group.reap()
        while not work.is_done:
            next_work = group.pending[0] if group.pending and work in group.pending else work
            if not self._step(next_work, LOOK_S):
                try:
                    wait = partial(self._step, next_work)
                    group.meeting.until(wait, timeout_s, next_work)
                except dist.DistBackendError as error:
                    group.fail(error)
            group.poll()

    def _step(self, work: Any, seconds: float) -> bool:
        """Let a work go on for a while, and the others with it; return True if it has come."""
        others = any(other.pending for other in self.groups if other is not work.group)
        if not others and not (work.group.messages and work.group.pending):
            return bool(work.step(seconds))
        until = time.monotonic() + seconds
        while True:
            if work.is_done or work.step(min(seconds, TURN_S)):
                return True
            self._turns += 1
            self.poll()
            if time.monotonic() >= until:
                return bool(work.is_done)

    def _go_on(self) -> None:
        """Let works go on that have been left alone."""
        while True:
            self._has_begun.wait()
            before = self._turns
            if not self._pending():
                self._has_begun.clear()
                if not self._pending():
                    continue
                self._has_begun.set()  # for one that began before the flag fell
            time.sleep(IDLE_S)
            if self._turns == before:
                self._let_go_on()  # not here, where the last group would be kept for as long as this thread waits
                self._tell()

    def _tell(self) -> None:
        for work in self.telling.left():
            work.tell()

    def _pending(self) -> bool:
        with self.lock:  # or a work that ends now would be on neither list
            return self.telling.has_left or any(group.pending or group.messages for group in self.groups)


PROGRESS = ProgressEngine()
