"""Contract of an optimizer: :class:`Optimizer` for a user's own, :class:`CompiledOptimizer` for compiled rules."""

from functools import partial
from typing import Any, ClassVar, Protocol

import numpy as np

from psframe import compiled
from psframe.config.registry import keywords
from psframe.errors import UserError
from psframe.memory.arena import Layout
from psframe.memory.extent import Places
from psframe.optim import groups as grouping


class Optimizer(Protocol):
    """Interface of a user's own optimizer: two attributes and one method.

    One that derives from :class:`CompiledOptimizer` runs in one pass with the sum of the gradients.

    Attributes
    ----------
    lr : float
        Base learning rate, which the schedule scales.
    n_state : int
        Numbers kept for each parameter.
    cuts : str, optional
        Places at which ranks may cut the vectors: ``anywhere``, the default; ``tensors``, between them only, for an
        update that needs more of a tensor than each number by itself; ``nowhere``.
    """

    lr: float
    n_state: int

    def update(self, params: np.ndarray, grads: np.ndarray, state: np.ndarray, lr: float, step: int) -> None:
        """Change ``params`` (S,) and ``state`` (n_state, S) in place by the mean gradient ``grads`` (S,), all float32.

        ``step`` counts from 1. With ``cuts`` of ``tensors`` these are one tensor's, in memory order; with ``nowhere``
        they are all that is trained. Else they are any slice: the result for an element depends on that element alone,
        and stays finite where all gradients were 0, as they are in the gaps between tensors.
        """


class CompiledOptimizer:
    """Base class of the optimizers with a compiled rule.

    Attributes
    ----------
    groups : list of dict or None
        Tensors with other learning rates or decay (:class:`psframe.optim.groups.Group`).
    clip_value, clip_norm : float
        The most that a number of the mean gradient, and the norm of all of it, may be; 0: any.
    by_tensor : bool
        True if the rule needs norms of whole tensors.
    decays_vectors : bool
        True if tensors of one dimension decay, too, unless a group says otherwise.
    """

    lr: float
    n_state: int
    groups: grouping.Groups = None
    clip_value = clip_norm = 0.0
    by_tensor: ClassVar[bool] = False
    decays_vectors: ClassVar[bool] = True

    def rule(self, lr: float, step: int) -> Any:
        """Return the rule of a step, a ``compiled.elementwise.Rule``."""
        raise NotImplementedError

    def _compile(self, kind: str, **hyper: float) -> Any:
        """Return the rule of a kind with the limits, once the keys are attributes.

        UserError if a group is none, or a decay is 1 or ``eps`` 0 in float32, by which the rule computes.
        """
        grouping.read(self.groups, self.by_tensor)
        for key in ("momentum", "beta1", "beta2"):
            if np.float32(hyper.get(key, 0.0)) >= 1:
                raise UserError(f"optimizer.{key} must be below 1 in float32, got {hyper[key]}; give 0.9999999 or less")
        if 0 < hyper.get("eps", 1.0) < np.finfo(np.float32).tiny:
            raise UserError(f"optimizer.eps must be above 0 in float32, got {hyper['eps']}; give 1e-37 or more")
        limits = {"clip_value": self.clip_value, "clip_norm": self.clip_norm}
        return compiled.elementwise.Rule(kind, **hyper, **limits)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the keys: compiled rules are made anew."""
        return partial(type(self), **{name: getattr(self, name) for name in keywords(type(self))}), ()

    @property
    def cuts(self) -> Places:
        """Places at which ranks may cut the vectors."""
        return "nowhere" if self.clip_norm else "tensors" if self.by_tensor else "anywhere"

    def parts(self, layout: Layout) -> Any:
        """Return the parts of a vector with the rule of each, a ``compiled.elementwise.Parts``."""
        decay, chosen = self.rule(self.lr, 1).decay, grouping.read(self.groups, self.by_tensor)
        rows = grouping.rows(layout, chosen, decay, self.decays_vectors)
        return compiled.elementwise.Parts(grouping.merged(rows, layout) if self.cuts == "anywhere" else rows)

    def check(self, layout: Layout) -> None:
        """Raise UserError if a group matches none of a network's tensors."""
        grouping.check(grouping.read(self.groups, self.by_tensor), layout)

    def update(self, params: np.ndarray, grads: np.ndarray, state: np.ndarray, lr: float, step: int) -> None:
        """Change ``params`` (S,) and ``state`` (n_state, S) by ``grads`` (S,), as the numbers of one tensor."""
        scratch = np.empty(len(params) if self.by_tensor else 0, np.float32)
        rule, mean = self.rule(lr, step), compiled.elementwise.Mean([grads])
        mean.update(rule, params, params, state, state, scratch=scratch)


class Corrections:
    """Corrections ``1 - beta**t`` of two moments (Kingma and Ba 2015, section 3), by float32's decays.

    The moments are computed with these: with float64's a step would be too long by their rounding over 1 - beta.
    """

    def __init__(self, beta1: float, beta2: float):
        self.decays = float(np.float32(beta1)), float(np.float32(beta2))

    def __call__(self, step: int) -> tuple[float, float]:
        """Return those of a step, which counts from 1."""
        first, second = self.decays
        return 1 - first**step, 1 - second**step
