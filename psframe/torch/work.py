"""Exchanges in progress (:class:`Work`), and what they end in (:class:`Future`), as PyTorch waits for them."""

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from time import monotonic, perf_counter
from typing import Any

import torch
import torch.distributed as dist

from psframe.torch.moves import described
from psframe.torch.peers import Parcel
from psframe.torch.progress import PROGRESS


def in_backward() -> bool:
    """Return True if autograd runs a graph now, a callback at its end included."""
    return bool(torch._C._current_graph_task_id() != -1)


class Future(torch.futures.Future):
    """Value of a work, an exchange or what follows one. Waiting for it lets exchanges go on; there is no thread."""

    work: "Work"

    def wait(self) -> Any:
        self.work.finish()
        return super().wait()

    def done(self) -> bool:
        self.work.is_completed()
        return bool(super().done())

    def then(self, callback: Callable[[Any], Any]) -> "Future":
        """Return the future of ``callback(self)``, called when this one is told its value."""
        after = Future()
        after.work = self.work

        def run(done: Any) -> None:
            try:
                after.set_result(callback(done))
            except Exception as error:
                after.set_exception(error)

        self.add_done_callback(run)
        return after


class Work(dist.Work):
    """An exchange that a rank has begun.

    Parameters
    ----------
    group : Group
    tensors : sequence of Tensor
        Its result.
    last : callable, optional
        Called once all has come, before anybody is told.
    """

    def __init__(self, group: Any, tensors: Sequence[Any], last: Callable[[], Any] | None):
        super().__init__()
        self.group, self.tensors, self.last = group, list(tensors), last
        self.thread = threading.get_ident()
        self.is_done = False
        self.error: Exception | None = None
        self.future: Future | None = None
        self._is_known = self._is_told = False  # to the program that it has ended; to the future
        self.whole: Several | None = None  # that it was begun as a part of

    def what(self) -> str:
        """Return it in words, for messages."""
        raise NotImplementedError

    def late(self) -> list[int]:
        """Return the numbers on this node of the ranks that keep it from going on."""
        raise NotImplementedError

    def has_come(self) -> bool:
        """Return True if all is given and taken."""
        raise NotImplementedError

    def lost(self, dead: list[int]) -> list[int]:
        """Return those of the node's ``dead`` ranks, by their numbers there, without whom it cannot end."""
        return dead

    def step(self, timeout_s: float) -> bool:
        """Go on; return False if nothing has come for ``timeout_s``."""
        raise NotImplementedError

    def complete(self, error: Exception | None = None) -> None:
        """Tell those who wait that it has ended."""
        if error is None and self.last:
            try:
                self.last()
            except Exception as failed:  # as of a tensor that may not be written to; they would wait for ever
                error = failed
        self.last, self.error, self.is_done = None, error, True
        if self.future is not None:
            PROGRESS.tell_later(self)
        if self.whole is not None:
            self.whole.end_if_all_have()

    def tell(self) -> None:
        """Give the future of a work that has ended its value, and call what follows on it; once."""
        with PROGRESS.lock:
            future = None if self._is_told else self.future
            self._is_known, self._is_told = True, self._is_told or future is not None
            PROGRESS.telling.has_told(self)
        if future is None:
            return
        if self.error is None:
            future.set_result(self.tensors)
        else:
            future.set_exception(self.error)

    def finish(self, timeout_s: float | None = None) -> None:
        """Wait until it has ended, well or not, and call what follows on it."""
        if not self.is_done:
            PROGRESS.until(self, self.group.timeout_s if timeout_s is None else timeout_s)
        self.tell()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until it has ended; raises DistBackendError if it ended badly."""
        seconds = timeout.total_seconds() if timeout is not None else 0
        self.finish(seconds if seconds > 0 else None)
        if self.error is not None:
            raise self.error
        return True

    synchronize = wait

    def get_future(self) -> Future:
        if self.future is None:
            # what begins in a callback at the end of backward is waited for there, by C++, which lets nothing go on,
            # and takes the error of a future of Python for its value
            if in_backward() and torch._C._current_autograd_node() is None:
                self.wait()
            self.future = Future()
            self.future.work = self
            self._tell_when_due()
        return self.future

    def _tell_when_due(self) -> None:
        PROGRESS.telling.begun(self)
        if self._is_known:
            self.tell()
        elif self.is_done:
            PROGRESS.tell_later(self)

    def is_completed(self) -> bool:
        if not self.is_done:
            PROGRESS.poll()
        if self.is_done:
            self.tell()
        return self.is_done

    def is_success(self) -> bool:
        return self.is_done and self.error is None

    def exception(self) -> Exception | None:
        return self.error

    def result(self) -> list[Any]:
        return self.tensors


class Collective(Work):
    """A collective, through the rooms of its group."""

    def __init__(self, group: Any, move: Any, tensors: Sequence[Any], last: Any, kept: Any):
        super().__init__(group, tensors, last)
        self.move, self.kept = move, kept

    def what(self) -> str:
        return f"{described(self.move.note, self.move.given_bytes)} of {self.group.meeting.name}"

    def late(self) -> list[int]:
        return [number for number in self.group.rooms.late() if self.group.here[number] != self.group.me]

    def has_come(self) -> bool:
        return bool(self.move.is_done)

    def step(self, timeout_s: float) -> bool:
        if self.group.between:
            try:
                return bool(self.group.between.step(self.move, timeout_s))
            except dist.DistBackendError as error:
                self.group.fail(error)
                return True
        return bool(self.group.rooms.run(self.move, timeout_s))

    def complete(self, error: Exception | None = None) -> None:
        super().complete(error)
        self.kept = None
        if self.group.record:
            self.group.record.ended(self)

    def finish(self, timeout_s: float | None = None) -> None:
        if not self.group.record or self.is_done:
            return super().finish(timeout_s)
        began = perf_counter()
        super().finish(timeout_s)
        self.group.record.waited(self, perf_counter() - began)


class Message(Work):
    """A message to a rank, or from one."""

    def __init__(self, group: Any, said: str, parcel: Parcel, tensors: Sequence[Any], last: Any):
        super().__init__(group, tensors, last)
        self.said, self.parcel = said, parcel

    def what(self) -> str:
        return self.said.format(*self.group.ranks)

    def late(self) -> list[int]:
        return [number for number, rank in enumerate(self.group.here) if rank == self.parcel.rank]

    def lost(self, dead: list[int]) -> list[int]:
        """Return those of the node's dead ranks without whom there is no message: its other end, or all of any."""
        if self.parcel.rank >= 0:
            return [number for number in dead if self.group.here[number] == self.parcel.rank]
        return dead if len(dead) == self.group.n - 1 else []

    def has_come(self) -> bool:
        return self.parcel.is_done or bool(self.parcel.error)

    def complete(self, error: Exception | None = None) -> None:
        if error is None and self.parcel.error:
            error = dist.DistBackendError(f"{self.parcel.error.format(*self.group.ranks)}, in {self.what()}")
        super().complete(error)

    def step(self, timeout_s: float) -> bool:
        until = monotonic() + timeout_s
        while True:
            with PROGRESS.lock:
                self.group.peers.poll()
            left = until - monotonic()
            if self.has_come() or left <= 0:
                return self.has_come()
            self.group.peers.wait(left)

    def source_rank(self) -> int:
        return self.parcel.rank

    _source_rank = source_rank


class Several(Work):
    """Works that were begun as one."""

    def __init__(self, group: Any, works: Sequence[Work]):
        super().__init__(group, [t for work in works for t in work.tensors], None)
        self.works = works
        with PROGRESS.lock:
            for work in works:
                work.whole = self
            self.end_if_all_have()

    def has_come(self) -> bool:
        return all(work.is_done for work in self.works)

    def end_if_all_have(self) -> None:
        """End with the last of the works, in the first of their errors."""
        if self.has_come() and not self.is_done:
            self.complete(next((work.error for work in self.works if work.error), None))

    def finish(self, timeout_s: float | None = None) -> None:
        for work in self.works:
            work.finish(timeout_s)
        with PROGRESS.lock:
            self.end_if_all_have()
        self.tell()
