"""Calls of a run's callbacks on rank 0 (:class:`Calls`); an error in one reaches all ranks at the next boundary."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from psframe.errors import UserError, reason
from psframe.record.flight import CALLBACK, phase
from psframe.train.callbacks.base import Callback, Control, Requests

#: methods of a callback
NAMES = tuple(name for name in vars(Callback) if name.startswith("on_"))


def check(callbacks: Any) -> None:
    """Raise UserError unless all are objects with methods of a callback."""
    if not isinstance(callbacks, list | tuple):
        raise UserError(f"callbacks must be a list of them, got {type(callbacks).__name__}; write callbacks=[...]")
    for callback in callbacks:
        if isinstance(callback, type) or not any(hasattr(callback, name) for name in NAMES):
            got = f"the class {callback.__name__}" if isinstance(callback, type) else type(callback).__name__
            raise UserError(f"a callback must be an object with one of {', '.join(NAMES)}, got {got}; make one")


class Calls:
    """Callbacks of a run, in order. Without any, or on a rank other than 0, every method does nothing.

    Parameters
    ----------
    callbacks : sequence
        Objects with methods of :class:`psframe.train.callbacks.base.Callback`.

    Attributes
    ----------
    control : Control or None
        From :meth:`begin` on.
    """

    def __init__(self, callbacks: Sequence[Any] = ()):
        self.callbacks = callbacks
        self.control: Control | None = None
        self.error: UserError | None = None
        self.ended = False
        self._after_step, self._on_checkpoint = self._methods("on_step_end"), self._methods("on_checkpoint")

    def _methods(self, name: str) -> list[Callable[..., None]]:
        return [method for callback in self.callbacks if (method := getattr(callback, name, None)) is not None]

    def begin(self, control: Control) -> Requests:
        """Begin the run, and return what is asked for."""
        if not self.callbacks:
            return Requests()
        self.control = control
        self._call("on_run_begin")
        return self.requests()

    def step(self, step: int) -> bool:
        """Act after step ``step`` of the run; return True if the ranks must come to a boundary."""
        if not self.control:
            return False
        self.control.step = step
        self._later(self._after_step)
        return bool(self.error or self.control.requests)

    def checkpoint(self, path: Path) -> None:
        """Act on a durable checkpoint."""
        self._later(self._on_checkpoint, path)

    def epoch(self, epoch: int, step: int, record: dict[str, Any]) -> None:
        """Act on an epoch's record, and add the callbacks' numbers to it."""
        if not self.control:
            return
        self.control.epoch, self.control.step = epoch, step
        for method in [None, *self._methods("on_epoch_end")]:
            if method:
                _guarded(method, self.control, MappingProxyType(record))
            numbers, self.control.numbers = self.control.numbers, {}  # of the steps, at first
            if taken := [name for name in numbers if name in record]:
                raise UserError(f"a callback's number must have a name of its own, got {taken[0]!r}; rename it")
            record |= numbers

    def requests(self) -> Requests:
        """Return what is asked for since the last call; raise the UserError of a callback that raised."""
        if self.error:
            error, self.error = self.error, None
            raise error
        if not self.control:
            return Requests()
        requests, self.control.requests = self.control.requests, Requests()
        if requests.lr is not None:
            self.control.lr = requests.lr
        return requests

    def losses(self, loss: float, n_samples: int) -> None:
        """Note the summed loss of the samples since the last boundary."""
        if self.control:
            self.control.loss, self.control.boundaries = (
                loss / n_samples if n_samples else None,
                self.control.boundaries + 1,
            )

    def end(self) -> None:
        """End the run, once; raise the UserError of a callback that raised."""
        if self.control and not self.ended:
            self.ended = True
            self.requests()
            self._call("on_run_end")

    def _later(self, methods: Sequence[Callable[..., None]], *given: Any) -> None:
        """Call methods where the other ranks do not wait for the outcome; :meth:`requests` raises their first error."""
        try:
            for method in methods:
                _guarded(method, self.control, *given)
        except UserError as error:
            self.error = self.error or error

    def _call(self, name: str, *given: Any) -> None:
        for method in self._methods(name):
            _guarded(method, self.control, *given)


def _guarded(method: Callable[..., None], *given: Any) -> None:
    """Call a callback's method; UserError if it raises."""
    try:
        with phase(CALLBACK):
            method(*given)
    except (UserError, KeyboardInterrupt):
        raise
    except BaseException as error:  # a user's code may raise anything, and the other ranks wait
        frame = error.__traceback__
        while frame and frame.tb_next:
            frame = frame.tb_next
        where = f" in {Path(frame.tb_frame.f_code.co_filename).name}, line {frame.tb_lineno}" if frame else ""
        owner = type(getattr(method, "__self__", method)).__name__
        name = getattr(method, "__name__", "call")
        raise UserError(
            f"a callback must not raise, got {type(error).__name__}{where}, from {owner}.{name}: "
            f"{reason(error)[:300]}; mend it"
        ) from error
