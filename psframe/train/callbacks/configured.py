"""Callbacks that a config asks for (:func:`callbacks`)."""

import msgspec

from psframe.config.schema import Config
from psframe.train.callbacks.base import Callback
from psframe.train.callbacks.best_checkpoint import BestCheckpoint
from psframe.train.callbacks.early_stopping import EarlyStopping


def callbacks(config: Config) -> list[Callback]:
    """Return the callbacks of ``train.stop`` and ``checkpoint.best``."""
    stop, best = config.train.stop, config.checkpoint.best
    early = [EarlyStopping(**msgspec.structs.asdict(stop))] if stop else []
    return [*early, *([BestCheckpoint(best)] if best != "none" else [])]
