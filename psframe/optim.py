"""Optimizers (:class:`Optimizer`): elementwise rules on flat vectors, or on any slice of them.

An optimizer is one compiled rule (``psframe.compiled.elementwise``) with its hyper-parameters. It has no memory of its
own: its state is rows of the arena, so that any rank that sums a slice can update it, to the same bits.
"""

from functools import partial
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from psframe import compiled
from psframe.config.registry import Fraction, NonNegative, Positive, Table, keywords
from psframe.memory.arena import Arena
from psframe.memory.checksums import Sums
from psframe.record.trace import UNTRACED, Trace
from psframe.record.traffic import Traffic

BLOCK = 1 << 16  # parameters per call of a user's own optimizer

TABLE: Table = {"sgd": "psframe.optim:SGD", "adam": "psframe.optim:Adam", "adagrad": "psframe.optim:AdaGrad"}


class Optimizer(Protocol):
    """Interface of a user's own optimizer: two attributes and one method.

    One that derives from :class:`Compiled` runs in one pass with the sum of the gradients.

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

        ``step`` counts from 1. The result for an element depends on that element alone, and stays finite where all
        gradients were 0, as they are in the gaps between tensors.
        """


class Compiled:
    """Base class of the optimizers with a compiled rule."""

    def rule(self, lr: float, step: int) -> Any:
        raise NotImplementedError

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the keys: compiled rules are made anew."""
        return partial(type(self), **{name: getattr(self, name) for name in keywords(type(self))}), ()

    def update(self, params: np.ndarray, grads: np.ndarray, state: np.ndarray, lr: float, step: int) -> None:
        compiled.elementwise.Mean([grads]).update(self.rule(lr, step), params, params, state, state)


class SGD(Compiled):
    """Stochastic gradient descent, with momentum (Polyak 1964) or Nesterov's (Sutskever et al. 2013), and L2 decay.

    The velocity is not scaled by the learning rate, as in PyTorch.
    """

    def __init__(
        self, *, lr: Positive = 0.01, momentum: Fraction = 0.0, nesterov: bool = False, weight_decay: NonNegative = 0.0
    ):
        self.lr, self.momentum, self.nesterov, self.weight_decay = lr, momentum, nesterov, weight_decay
        kind = "sgd" if not momentum else "nesterov" if nesterov else "momentum"
        self._rule = compiled.elementwise.Rule(kind, decay=weight_decay, momentum=momentum)
        self.n_state = self._rule.n_state

    def rule(self, lr: float, step: int) -> Any:
        return self._rule.at(lr)


class Adam(Compiled):
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
        self._rule = compiled.elementwise.Rule("adam", decay=weight_decay, beta1=beta1, beta2=beta2, eps=eps)

    def rule(self, lr: float, step: int) -> Any:
        return self._rule.at(lr, 1 - self.beta1**step, 1 - self.beta2**step)


class AdaGrad(Compiled):
    """Duchi, Hazan and Singer 2011, with L2 decay; Dean et al. 2012 found it robust with asynchronous updates."""

    def __init__(self, *, lr: Positive = 0.01, eps: Positive = 1e-10, weight_decay: NonNegative = 0.0):
        self.lr, self.eps, self.weight_decay = lr, eps, weight_decay
        self._rule = compiled.elementwise.Rule("adagrad", decay=weight_decay, eps=eps)
        self.n_state = self._rule.n_state

    def rule(self, lr: float, step: int) -> Any:
        return self._rule.at(lr)


class Updater:
    """Application of an optimizer to segments of an arena, with its time and traffic.

    Attributes
    ----------
    update_s : float
        Seconds spent in updates, including the sums fused with them, since the owner last called :meth:`clear`.
    traffic : Traffic
        Bytes that these moved.
    first_nonfinite_step : int
        The first step whose mean gradient was not finite here, or 0.
    sums : Sums or None
        Checksums of written segments, verified on the next read; None without such checks.
    """

    def __init__(self, optimizer: Optimizer, arena: Arena, sums: Sums | None = None, trace: Trace = UNTRACED):
        self.optimizer, self.arena, self.sums, self.trace = optimizer, arena, sums, trace
        self.damaged = False
        self.fused = isinstance(optimizer, Compiled)
        self.scratch = np.empty(0 if self.fused else BLOCK, np.float32)
        self.update_s, self.traffic, self.first_nonfinite_step = 0.0, Traffic(), 0

    def clear(self) -> None:
        """Reset the counts."""
        self.update_s, self.first_nonfinite_step = 0.0, 0
        self.traffic.clear()

    def take_damage(self) -> bool:
        """Return True if a checksum has not matched since the last call."""
        damaged, self.damaged = self.damaged, False
        return damaged

    def __call__(self, segment: slice, gradient: Any, lr: float, step: int) -> None:
        """Update ``segment`` by its mean gradient: an array, or a ``compiled.elementwise.Mean`` not yet computed."""
        began = perf_counter()
        mean = compiled.elementwise.Mean([gradient]) if isinstance(gradient, np.ndarray) else gradient
        take = self._in_one_pass if self.fused else self._in_blocks
        if not take(segment, mean, lr, step):
            self.first_nonfinite_step = self.first_nonfinite_step or step
            self.arena.nonfinite = self.arena.guarded
        if self.sums and not self.sums.note(segment):
            self.damaged = self.arena.nonfinite = True
        n_bytes = (1 + self.arena.state.shape[0]) * 4 * mean.size  # bytes of parameters and state, read and written
        self.traffic.read += mean.n_rows * 4 * mean.size + n_bytes
        self.traffic.written += n_bytes + (2 * mean.size if self.arena.new_half is not None else 0)
        self.update_s += perf_counter() - began
        if self.trace.on:
            self.trace.add("update", began)

    def _in_one_pass(self, segment: slice, mean: Any, lr: float, step: int) -> bool:
        arena = self.arena
        rule = self.optimizer.rule(lr, step)  # type: ignore[attr-defined]
        return mean.update(
            rule,
            arena.params[segment],
            arena.new_params[segment],
            arena.state[:, segment],
            arena.new_state[:, segment],
            self.sums.scratch if self.sums else None,
            arena.layout.n_trained - (segment.start or 0),
            None if arena.new_half is None else arena.new_half[segment],
        )

    def _in_blocks(self, segment: slice, mean: Any, lr: float, step: int) -> bool:
        """Do the same with a user's own optimizer, which works in place; return True if the gradient is finite."""
        arena, finite = self.arena, True
        start, stop, _ = segment.indices(arena.layout.size)
        if self.sums:
            self.sums.read(segment, True)
        for begin in range(start, stop, BLOCK):
            block = slice(begin, min(begin + BLOCK, stop))
            gradient = self.scratch[: block.stop - begin]
            finite &= mean.into(gradient, begin - start)
            params, state = arena.new_params[block], arena.new_state[:, block]
            if arena.new_params is not arena.params:
                params[:], state[:] = arena.params[block], arena.state[:, block]
            n = max(0, arena.layout.n_trained - begin)
            params[n:] -= gradient[n:]
            if n:
                self.optimizer.update(params[:n], gradient[:n], state[:, :n], lr, step)
        if arena.new_half is not None:
            compiled.elementwise.narrow(arena.new_params[segment], arena.new_half[segment])
        if self.sums:
            self.sums.read(segment, False)
        return finite
