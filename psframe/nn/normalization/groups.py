"""Normalization of each sample by groups of its channels: :class:`GroupNorm` and :class:`LayerNorm`."""

import numpy as np

from psframe.errors import UserError
from psframe.nn.base import Pass, Shape
from psframe.nn.checks import whole
from psframe.nn.normalization import loops
from psframe.nn.normalization.base import Normalization
from psframe.nn.steps import Meeting


class GroupNorm(Normalization):
    """Normalization of each sample by mean and variance of a group of its channels (Wu and He 2018).

    Parameters
    ----------
    groups : int
        Must divide the channels.
    eps : float
    """

    shared = False

    def __init__(self, groups: int, *, eps: float = 1e-5):
        super().__init__(eps=eps)
        self.groups = whole("groups", groups, 1)

    def setup(self, input_shape: Shape, index: int) -> Shape:
        if input_shape[-1] % self.groups:
            raise UserError(
                f"layer {index}, {type(self).__name__}, must get channels that its {self.groups} groups divide, got "
                f"{input_shape[-1]}; use fewer groups"
            )
        return super().setup(input_shape, index)

    def _prepare(self, x: np.ndarray, state: Pass) -> Meeting | None:
        self._observe(x, state)
        sets = self._sets(x, state)
        loops.of_groups(
            self.moments[sets], self.places, self.groups, self.eps, self.p["weight"], self.p["bias"], self.found[sets],
            self.by_channel[sets],
        )  # fmt: skip
        return None

    def _gradients(self, x: np.ndarray, state: Pass) -> Meeting | None:
        sets = self._sets(x, state)
        loops.of_group_means(
            self.sums[sets], self.places, self.groups, self.p["weight"], self.found[sets], self.of_means[sets]
        )
        return None

    def _of_parameters(self, x: np.ndarray, state: Pass) -> None:
        rows = self._rows(self._place(state))
        if state.first == rows.start:
            self.adds = state.adds  # the parts that follow add to this one
        if state.first + len(x) == rows.stop:
            loops.group_gradients(self.sums[rows], self.found[rows], self.adds, self.g["weight"], self.g["bias"])


class LayerNorm(GroupNorm):
    """Normalization of each sample by mean and variance of all its numbers (Ba, Kiros and Hinton 2016).

    ``weight`` and ``bias`` have one number a channel: for images as in PyTorch's ``GroupNorm(1, C)``, for rows (n, F)
    as in its ``LayerNorm(F)``.

    Parameters
    ----------
    eps : float
    """

    def __init__(self, *, eps: float = 1e-5):
        super().__init__(1, eps=eps)
