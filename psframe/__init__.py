"""psframe: data-parallel training of small convolutional networks on many-core CPUs over MPI."""

from typing import Any

__version__ = "0.1.0"

#: what the package shows, imported at its first use: a rank, and most commands, need none of it
_SHOWN = {
    "BestCheckpoint": "psframe.train.callbacks.best_checkpoint",
    "Callback": "psframe.train.callbacks.base",
    "EarlyStopping": "psframe.train.callbacks.early_stopping",
    "LearningRateFinder": "psframe.train.callbacks.learning_rate_finder",
    "Logger": "psframe.train.callbacks.logger",
    "RankError": "psframe.api.watched",
    "Run": "psframe.api.runs",
    "UserError": "psframe.errors",
    "fit": "psframe.api.fit",
    "open_run": "psframe.api.runs",
}


def __getattr__(name: str) -> Any:
    if name not in _SHOWN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_SHOWN[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_SHOWN})
