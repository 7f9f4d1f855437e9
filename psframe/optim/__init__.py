"""Optimizers: rules on flat vectors (:class:`CompiledOptimizer`), and what applies them (:class:`Updater`).

An optimizer is one compiled rule (``psframe.compiled.elementwise``) with its hyper-parameters. It has no memory of its
own: its state is rows of the arena, so that any rank that sums a slice can update it, to the same bits.
"""

from psframe.config.registry import Table
from psframe.optim.base import CompiledOptimizer, Optimizer
from psframe.optim.layerwise import LAMB, LARS
from psframe.optim.rules import SGD, AdaGrad, Adam, AdamW, Lion
from psframe.optim.updater import Updater

__all__ = ["LAMB", "LARS", "SGD", "AdaGrad", "Adam", "AdamW", "CompiledOptimizer", "Lion", "Optimizer", "Updater"]

TABLE: Table = {
    "sgd": "psframe.optim:SGD",
    "adam": "psframe.optim:Adam",
    "adamw": "psframe.optim:AdamW",
    "adagrad": "psframe.optim:AdaGrad",
    "lion": "psframe.optim:Lion",
    "lars": "psframe.optim:LARS",
    "lamb": "psframe.optim:LAMB",
}
