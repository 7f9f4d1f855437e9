"""Optimizers for large batches, which scale the update of each tensor by norms: :class:`LARS`, :class:`LAMB`.

A tensor is a layer of the papers. Where one of the norms is 0, as that of a bias before its first step, the ratio is 1.
Tensors of one dimension do not decay unless a group says so.
"""

from typing import Any

from psframe.config.registry import Fraction, NonNegative, Positive
from psframe.optim.base import CompiledOptimizer, Corrections
from psframe.optim.groups import Groups


class LARS(CompiledOptimizer):
    """You, Gitman and Ginsburg 2017, algorithm 1.

    ``v <- momentum v + lr r (g + weight_decay w); w <- w - v`` with ``r = trust |w| / (|g| + weight_decay |w| + eps)``.
    The learning rate is within the velocity, as in the paper.
    """

    n_state = 1
    by_tensor = True
    decays_vectors = False

    def __init__(
        self,
        *,
        lr: Positive = 1.0,
        momentum: Fraction = 0.9,
        weight_decay: NonNegative = 0.0,
        trust: Positive = 0.001,
        eps: NonNegative = 1e-9,
        clip_value: NonNegative = 0.0,
        clip_norm: NonNegative = 0.0,
        groups: Groups = None,
    ):
        self.lr, self.momentum, self.weight_decay, self.trust, self.eps = lr, momentum, weight_decay, trust, eps
        self.clip_value, self.clip_norm, self.groups = clip_value, clip_norm, groups
        self._rule = self._compile("lars", decay=weight_decay, momentum=momentum, trust=trust, eps=eps)

    def rule(self, lr: float, step: int) -> Any:
        return self._rule.at(lr)


class LAMB(CompiledOptimizer):
    """You et al. 2020, algorithm 2, with both moments corrected for their bias.

    ``u = m^ / (sqrt(v^) + eps) + weight_decay w; w <- w - lr r u`` with ``r = min(|w|, clamp) / |u|``: the paper's phi
    is the norm, up to ``clamp``.
    """

    n_state = 2
    by_tensor = True
    decays_vectors = False

    def __init__(
        self,
        *,
        lr: Positive = 1e-3,
        beta1: Fraction = 0.9,
        beta2: Fraction = 0.999,
        eps: Positive = 1e-6,
        weight_decay: NonNegative = 0.0,
        clamp: Positive = 10.0,
        clip_value: NonNegative = 0.0,
        clip_norm: NonNegative = 0.0,
        groups: Groups = None,
    ):
        self.lr, self.beta1, self.beta2, self.eps, self.weight_decay = lr, beta1, beta2, eps, weight_decay
        self.clamp, self.clip_value, self.clip_norm, self.groups = clamp, clip_value, clip_norm, groups
        self._rule = self._compile("lamb", decay=weight_decay, beta1=beta1, beta2=beta2, eps=eps, trust=clamp)
        self._corrections = Corrections(beta1, beta2)

    def rule(self, lr: float, step: int) -> Any:
        return self._rule.at(lr, *self._corrections(step))
