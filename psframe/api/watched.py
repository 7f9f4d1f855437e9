"""Side of a script in the run that it has started (:class:`Watched`): its progress, its callbacks there, its end."""

from collections.abc import Sequence
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

    Attributes
    ----------
    path : Path or None
        The run's folder, once it has begun.
    refused, failed : str
        The user's mistake, or a rank's error; "" without one.
    states : bytes
        Pickled attributes that the callbacks on rank 0 ended with; b"" until then.
    """

    def __init__(self, callbacks: Sequence[Any], live: Live):
        self.calls, self.live = Calls(callbacks), live
        self.path: Path | None = None
        self.refused = self.failed = ""
        self.states = b""

    def begun(self, rank: Channel, control: Control) -> None:
        self.path = control.path
        self._watch(self.calls.begin(control))
        self.live.begin(control)

    def step(self, rank: Channel, step: int) -> None:
        self.live.step(step)

    def epoch(self, rank: Channel, control: Control, record: dict[str, Any]) -> None:
        added = {**record}
        self.calls.epoch(control.epoch, control.step, added)
        self._watch(len(added) > len(record) or self.calls.requests())
        self.live.epoch(record)

    def end(self, rank: Channel, states: bytes) -> None:
        self.states = states
        self.calls.end()

    def refuse(self, rank: Channel, message: str) -> None:
        self.refused = self.refused or message

    def fail(self, rank: Channel, message: str) -> None:
        self.failed = self.failed or message.removeprefix("psframe: ").rstrip()

    def _watch(self, asked: object) -> None:
        if asked:
            raise UserError("a callback of the script watches a run and asks for nothing; let it run on rank 0")
