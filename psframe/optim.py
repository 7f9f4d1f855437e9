"""Optimizers: elementwise rules on flat vectors, or on any slice of them.

An optimizer is one compiled rule (``psframe._elementwise``) with its hyper-parameters. It keeps no memory of its own:
its state is rows of the arena, so that a slice may be updated by whichever rank sums it, to the same bits.
"""

from time import perf_counter
from typing import Protocol

import numpy as np

from psframe import compiled
from psframe.registry import Fraction, NonNegative, Positive, Table

TABLE: Table = {"sgd": "psframe.optim:SGD", "adam": "psframe.optim:Adam"}


class Optimizer(Protocol):
    """A user's own needs these two attributes and this one method.

    Attributes
    ----------
    lr : float
        Base learning rate, which the schedule scales.
    n_state : int
        Numbers kept for each parameter.
    """

    lr: float
    n_state: int

    def update(self, params: np.ndarray, grads: np.ndarray, state: np.ndarray, lr: float, step: int) -> None:
        """Change ``params`` (S,) and ``state`` (n_state, S) in place by the mean gradient ``grads`` (S,), all float32.

        ``step`` counts from 1. The result for an element depends on that element alone.
        """


class SGD:
    """Stochastic gradient descent, with momentum (Polyak 1964) or Nesterov's (Sutskever et al. 2013), and L2 decay.

    The velocity is not scaled by the learning rate, as in PyTorch.
    """

    def __init__(
        self, *, lr: Positive = 0.01, momentum: Fraction = 0.0, nesterov: bool = False, weight_decay: NonNegative = 0.0
    ):
        self.lr, self.momentum, self.nesterov, self.weight_decay = lr, momentum, nesterov, weight_decay
        self.n_state = 1 if momentum else 0

    def update(self, params: np.ndarray, grads: np.ndarray, state: np.ndarray, lr: float, step: int) -> None:
        rules = compiled.elementwise
        if not self.momentum:
            rules.sgd(params, grads, lr, self.weight_decay)
        else:
            rule = rules.nesterov if self.nesterov else rules.momentum
            rule(params, grads, state[0], lr, self.momentum, self.weight_decay)


class Adam:
    """Kingma and Ba 2015, algorithm 1, with L2 decay."""

    n_state = 2

    def __init__(
        self,
        *,
        lr: Positive = 1e-3,
        beta1: Fraction = 0.9,
        beta2: Fraction = 0.999,
        eps: Positive = 1e-8,
        weight_decay: NonNegative = 0.0,
    ):
        self.lr, self.beta1, self.beta2, self.eps, self.weight_decay = lr, beta1, beta2, eps, weight_decay

    def update(self, params: np.ndarray, grads: np.ndarray, state: np.ndarray, lr: float, step: int) -> None:
        compiled.elementwise.adam(
            params, grads, state[0], state[1], lr, self.beta1, self.beta2, self.eps, self.weight_decay,
            1 - self.beta1**step, 1 - self.beta2**step,
        )  # fmt: skip


class Updater:
    """Applies an optimizer to the slices of an arena, and measures how long that takes.

    Attributes
    ----------
    update_s : float
        Seconds spent in updates since the owner last set it to 0.
    """

    def __init__(self, optimizer: Optimizer, params: np.ndarray, state: np.ndarray):
        self.optimizer, self.params, self.state = optimizer, params, state
        self.update_s = 0.0

    def __call__(self, segment: slice, gradient: np.ndarray, lr: float, step: int) -> None:
        began = perf_counter()
        self.optimizer.update(self.params[segment], gradient, self.state[:, segment], lr, step)
        self.update_s += perf_counter() - began
