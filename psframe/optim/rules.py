"""Optimizers that update every number by itself: :class:`SGD`, :class:`Adam`, :class:`AdamW`, :class:`AdaGrad` ..."""

from typing import Any

from psframe.config.registry import Fraction, NonNegative, Positive
from psframe.errors import UserError
from psframe.optim.base import CompiledOptimizer, Corrections
from psframe.optim.groups import Groups


class SGD(CompiledOptimizer):
    """Stochastic gradient descent, with momentum (Polyak 1964) or Nesterov's (Sutskever et al. 2013), and L2 decay.

    The velocity is not scaled by the learning rate, as in PyTorch. ``decoupled``: the decay does not enter the
    velocity: ``v <- momentum v + g; w <- w - lr (v + weight_decay w)`` (SGDW, Loshchilov and Hutter 2019, algorithm 1,
    but with ``lr`` before the decay, as in AdamW).
    """

    def __init__(
        self,
        *,
        lr: Positive = 0.01,
        momentum: Fraction = 0.0,
        nesterov: bool = False,
        weight_decay: NonNegative = 0.0,
        decoupled: bool = False,
        clip_value: NonNegative = 0.0,
        clip_norm: NonNegative = 0.0,
        groups: Groups = None,
    ):
        self.lr, self.momentum, self.nesterov, self.weight_decay = lr, momentum, nesterov, weight_decay
        self.decoupled, self.clip_value, self.clip_norm, self.groups = decoupled, clip_value, clip_norm, groups
        if nesterov and not momentum:
            raise UserError("optimizer.nesterov must have a momentum, got 0; give optimizer.momentum=0.9")
        kind = "sgd" if not momentum else "nesterov" if nesterov else "momentum"
        kind += "_w" if decoupled and momentum else ""  # without a velocity the two decays are one
        self._rule = self._compile(kind, decay=weight_decay, momentum=momentum)
        self.n_state = self._rule.n_state

    def rule(self, lr: float, step: int) -> Any:
        return self._rule.at(lr)


class Adam(CompiledOptimizer):
    """Kingma and Ba 2015, algorithm 1, with L2 decay."""

    kind = "adam"
    n_state = 2

    def __init__(
        self,
        *,
        lr: Positive = 1e-3,
        beta1: Fraction = 0.9,
        beta2: Fraction = 0.999,
        eps: Positive = 1e-8,
        weight_decay: NonNegative = 0.0,
        clip_value: NonNegative = 0.0,
        clip_norm: NonNegative = 0.0,
        groups: Groups = None,
    ):
        self.lr, self.beta1, self.beta2, self.eps, self.weight_decay = lr, beta1, beta2, eps, weight_decay
        self.clip_value, self.clip_norm, self.groups = clip_value, clip_norm, groups
        self._rule = self._compile(self.kind, decay=weight_decay, beta1=beta1, beta2=beta2, eps=eps)
        self._corrections = Corrections(beta1, beta2)

    def rule(self, lr: float, step: int) -> Any:
        return self._rule.at(lr, *self._corrections(step))


class AdamW(Adam):
    """Adam with decay beside the moments, times the learning rate (Loshchilov and Hutter 2019, algorithm 2), as PyTorch
    has it. Tensors of one dimension, such as biases, do not decay unless a group says so.
    """

    kind = "adam_w"
    decays_vectors = False

    def __init__(
        self,
        *,
        lr: Positive = 1e-3,
        beta1: Fraction = 0.9,
        beta2: Fraction = 0.999,
        eps: Positive = 1e-8,
        weight_decay: NonNegative = 0.01,
        clip_value: NonNegative = 0.0,
        clip_norm: NonNegative = 0.0,
        groups: Groups = None,
    ):
        limits = {"clip_value": clip_value, "clip_norm": clip_norm}
        super().__init__(lr=lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay, groups=groups, **limits)


class AdaGrad(CompiledOptimizer):
    """Duchi, Hazan and Singer 2011, with L2 decay; Dean et al. 2012 found it robust with asynchronous updates."""

    n_state = 1

    def __init__(
        self,
        *,
        lr: Positive = 0.01,
        eps: Positive = 1e-10,
        weight_decay: NonNegative = 0.0,
        clip_value: NonNegative = 0.0,
        clip_norm: NonNegative = 0.0,
        groups: Groups = None,
    ):
        self.lr, self.eps, self.weight_decay = lr, eps, weight_decay
        self.clip_value, self.clip_norm, self.groups = clip_value, clip_norm, groups
        self._rule = self._compile("adagrad", decay=weight_decay, eps=eps)

    def rule(self, lr: float, step: int) -> Any:
        return self._rule.at(lr)


class Lion(CompiledOptimizer):
    """Chen et al. 2023, algorithm 2: the sign of an average of gradients, and decoupled decay.

    Tensors of one dimension do not decay unless a group says so.
    """

    n_state = 1
    decays_vectors = False

    def __init__(
        self,
        *,
        lr: Positive = 1e-4,
        beta1: Fraction = 0.9,
        beta2: Fraction = 0.99,
        weight_decay: NonNegative = 0.0,
        clip_value: NonNegative = 0.0,
        clip_norm: NonNegative = 0.0,
        groups: Groups = None,
    ):
        self.lr, self.beta1, self.beta2, self.weight_decay = lr, beta1, beta2, weight_decay
        self.clip_value, self.clip_norm, self.groups = clip_value, clip_norm, groups
        self._rule = self._compile("lion", decay=weight_decay, beta1=beta1, beta2=beta2)

    def rule(self, lr: float, step: int) -> Any:
        return self._rule.at(lr)
