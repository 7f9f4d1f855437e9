"""Report of a run to the script that started it (:class:`Stream`), as rank 0's last callback."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from time import monotonic
from typing import Any

from psframe.train.callbacks.base import Callback, Control

EVERY_S = 0.1  # from one report of steps to the next


class Stream(Callback):
    """Send the run's folder at its begin, each epoch's record, and the steps done a few times a second.

    Parameters
    ----------
    send : callable
        Takes a message, a tuple that begins with its name; OSError if the script is gone.
    n_steps : callable
        Returns the steps of an epoch.
    """

    def __init__(self, send: Callable[[tuple[Any, ...]], None]):
        self.send, self.sent_s = send, 0.0

    def on_run_begin(self, control: Control) -> None:
        self._send("begun", control)

    def on_step_end(self, control: Control) -> None:
        now = monotonic()
        if now - self.sent_s >= EVERY_S:
            self.sent_s = now
            self._send("step", control.step)

    def on_epoch_end(self, control: Control, record: Mapping[str, Any]) -> None:
        self._send("epoch", control, dict(record))

    def _send(self, *message: Any) -> None:
        with suppress(OSError):  # a script that is gone ends the job by itself
            self.send(message)
