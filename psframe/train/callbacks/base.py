"""Interface of a callback (:class:`Callback`), and a run as callbacks see it (:class:`Control`).

Callbacks run on rank 0. They change nothing themselves: what they ask for becomes :class:`Requests`, which all ranks
meet at the next boundary, the end of an epoch or a pause between two steps.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from numbers import Real
from pathlib import Path
from typing import Any

from psframe.config.schema import Config
from psframe.errors import UserError


@dataclass
class Requests:
    """Requests of rank 0's callbacks, which all ranks meet at a boundary.

    Attributes
    ----------
    stop : str
        Reason to end the run here; "" to go on.
    save : bool
        True to write a checkpoint here.
    lr : float or None
        Base learning rate from here on, which the schedule scales; None keeps it.
    """

    stop: str = ""
    save: bool = False
    lr: float | None = None

    def __bool__(self) -> bool:
        return bool(self.stop or self.save or self.lr is not None)


@dataclass
class Control:
    """A run as a callback sees it, on rank 0.

    Attributes
    ----------
    path : Path
        The run's folder.
    config : Config
    n_steps : int
        Steps of an epoch.
    epoch, step : int
        Epochs and steps done.
    lr : float
        Base learning rate, which the schedule scales.
    boundaries : int
        Pauses between steps so far.
    loss : float or None
        Mean training loss of the steps up to the last of these, from the one before or the begin of the epoch.
    requests : Requests
        Those not met yet.
    numbers : dict
        Numbers for the next epoch's record.
    """

    path: Path
    config: Config
    n_steps: int
    epoch: int
    step: int
    lr: float
    boundaries: int = 0
    loss: float | None = None
    requests: Requests = field(default_factory=Requests)
    numbers: dict[str, float] = field(default_factory=dict)

    def stop(self, reason: str = "a callback asked to") -> None:
        """End the run at the next boundary. Inside an epoch, a checkpoint is written and the epoch has no record."""
        self.requests.stop = self.requests.stop or str(reason) or "a callback asked to"

    def save(self) -> None:
        """Write a checkpoint at the next boundary, also where ``checkpoint.every_epochs`` is 0."""
        self.requests.save = True

    def set_lr(self, lr: float) -> None:
        """Set the base learning rate from the next boundary on; UserError unless it is a number above 0."""
        if not isinstance(lr, Real) or not isfinite(lr) or lr <= 0:
            raise UserError(f"a learning rate must be a number above 0, got {lr!r}; mend the callback")
        self.requests.lr = float(lr)

    def record(self, **numbers: float) -> None:
        """Add numbers to the record of this epoch, under names that it does not have; UserError if they are others."""
        for name, number in numbers.items():
            try:
                self.numbers[name] = float(number)
            except (TypeError, ValueError):
                raise UserError(f"a record takes numbers, got {name}={number!r}; mend the callback") from None


class Callback:
    """Base class of callbacks, whose methods do nothing. Any object with some of these methods is one.

    All are called on rank 0. One that raises ends the run, on all ranks and in one sentence.
    """

    def on_run_begin(self, control: Control) -> None:
        """Act before the first step."""

    def on_step_end(self, control: Control) -> None:
        """Act after a step of rank 0. In asynchronous modes, other ranks are at other steps."""

    def on_epoch_end(self, control: Control, record: Mapping[str, Any]) -> None:
        """Act on an epoch's record, before it is written. It has the numbers of the callbacks before this one."""

    def on_checkpoint(self, control: Control, path: Path) -> None:
        """Act on a checkpoint that is durable, at the next end of a step or epoch."""

    def on_run_end(self, control: Control) -> None:
        """Act after the last epoch, or after the run was stopped."""
