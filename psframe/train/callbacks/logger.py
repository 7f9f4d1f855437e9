"""Copy of a run's numbers to an experiment tracker (:class:`Logger`)."""

from collections.abc import Mapping
from typing import Any

import msgspec

from psframe.config.paths import flat
from psframe.errors import UserError
from psframe.train.callbacks.base import Callback, Control
from psframe.train.callbacks.best import numbers


class Logger(Callback):
    """Send the numbers of each epoch to an object with MLflow's methods or with W&B's.

    It stays in the script where :func:`psframe.fit` starts the ranks, so the object needs no copy.

    Parameters
    ----------
    target : object
        ``mlflow``, with ``log_metrics(numbers, step=epoch)`` and ``log_params(config)``; or a run of W&B, with
        ``log(numbers, step=epoch)`` and ``config.update(config)``.
    """

    in_script = True

    def __init__(self, target: Any):
        self.log: Any = getattr(target, "log_metrics", None) or getattr(target, "log", None)
        self.configure = getattr(target, "log_params", None) or getattr(getattr(target, "config", None), "update", None)
        if self.log is None:
            raise UserError(f"a logger must have log_metrics or log, got {type(target).__name__}; give mlflow, say")

    def on_run_begin(self, control: Control) -> None:
        if self.configure:
            self.configure(flat(msgspec.to_builtins(control.config)))

    def on_epoch_end(self, control: Control, record: Mapping[str, Any]) -> None:
        self.log({name: value for name, value in numbers(record).items() if value is not None}, step=record["epoch"])
