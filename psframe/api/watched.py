"""Side of a script in the run that it has started (:class:`Watched`): its progress, its callbacks there, its end."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from psframe.api.channel import Channel
from psframe.api.live import Live
from psframe.errors import UserError
from psframe.train.callbacks.base import Control
from psframe.train.callbacks.calls import Calls


class RankError(Exception):
    """Error on a rank that is no mistake of the user: the rank, and its traceback."""


class Watched:
    """What a script learns of its run from the messages of rank 0.

    Parameters
    ----------
    callbacks : sequence
        Callbacks that stay in the script.
    live : Live
        Display of the progress.
    leave : callable
        Asks the ranks to leave, with a checkpoint, after the script's own code has raised ``error``. That is not called
        again.

    Attributes
    ----------
    path : Path or None
        The run's folder, once it has begun.
    refused, failed : str
        The user's mistake, or a rank's error; "" without one.
    error : Exception or None
    states : bytes
        Pickled attributes that the callbacks on rank 0 ended with; b"" until then.
    """

    def __init__(self, callbacks: Sequence[Any], live: Live, leave: Callable[[], object]):
        self.calls, self.live, self.leave = Calls(callbacks), live, leave
        self.path: Path | None = None
        self.refused = self.failed = ""
        self.error: Exception | None = None
        self.states = b""

    def begun(self, rank: Channel, control: Control) -> None:
        self.path = control.path
        self._own(lambda: self._watch(self.calls.begin(control)))
        self.live.begin(control)

    def step(self, rank: Channel, step: int) -> None:
        self.live.step(step)

    def epoch(self, rank: Channel, control: Control, record: dict[str, Any]) -> None:
        added = {**record}

        def tell() -> None:
            self.calls.epoch(control.epoch, control.step, added)
            self._watch(len(added) > len(record) or self.calls.requests())

        self._own(tell)
        self.live.epoch(record)

    def end(self, rank: Channel, states: bytes) -> None:
        self.states = states
        self._own(self.calls.end)

    def _own(self, call: Callable[[], object]) -> None:
        """Call the script's own code; keep what it raises, as the ranks do not end at once."""
        try:
            if not self.error:
                call()
        except Exception as error:
            self.error = error
            self.leave()

    def refuse(self, rank: Channel, message: str) -> None:
        self.refused = self.refused or message

    def fail(self, rank: Channel, message: str) -> None:
        self.failed = self.failed or message.removeprefix("psframe: ").rstrip()

    def _watch(self, asked: object) -> None:
        if asked:
            raise UserError("a callback of the script watches a run and asks for nothing; let it run on rank 0")
