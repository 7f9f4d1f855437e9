"""Batch on its way through a network (:class:`Batch`), and gradients that are complete (:class:`BackwardProgress`)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from psframe.nn.base import Layer, LayerHook, Pass
from psframe.nn.losses import Labels


@dataclass(frozen=True)
class Batch:
    """Samples of a step that are computed together.

    Attributes
    ----------
    x : ndarray, shape (n, H, W, C)
    labels : callable
        ``labels()`` returns labels (n,) or :class:`psframe.nn.losses.Targets`, at the end of the forward pass.
    state : Pass
    """

    x: np.ndarray
    labels: Callable[[], Labels]
    state: Pass


class BackwardProgress:
    """Progress of a backward pass, of which a hook is told.

    Parameters
    ----------
    active : sequence of (int, Layer)
        Layers that run, with their numbers.
    begins : sequence of int
        By number: offset at which the parameters of that layer, and of the later ones, begin.
    size : int
        Length of the vector.
    hook : LayerHook or None
    """

    def __init__(self, active: Sequence[tuple[int, Layer]], begins: Sequence[int], size: int, hook: LayerHook | None):
        self.active, self.begins, self.end, self.hook = active, begins, size, hook

    def layer(self, number: int) -> None:
        """Note that the gradients of the layer at a position in ``active``, and of the later ones, are complete."""
        index = self.active[number][0]
        if self.hook and index in self.hook.layers:
            self._reach(self.begins[index])

    def finish(self) -> None:
        """Note that all gradients are complete."""
        self._reach(0)

    def _reach(self, begin: int) -> None:
        if self.hook and begin < self.end:
            self.hook.call(slice(begin, self.end))
            self.end = begin
