"""Normalization layers: :class:`BatchNorm`, :class:`GroupNorm` and :class:`LayerNorm`."""

from collections.abc import Callable
from math import gcd, prod
from typing import Any, Literal

import numpy as np

from psframe.errors import UserError
from psframe.nn.activations import BeforeReLU
from psframe.nn.base import Arrays, Layer, Param, Pass, Shape
from psframe.nn.blocking import blocking
from psframe.nn.checks import whole
from psframe.nn.normalization import loops
from psframe.nn.workspace import Workspace

Norm = Literal["batch", "group", "layer"]  #: keys of :data:`TABLE`
GROUPS = 8  # of channels, in the models: a few channels in each, and vectors that are full


class Normalization(BeforeReLU):
    """y = (x - mean) / sqrt(variance + eps) * weight + bias, by channel; input and output (n, ..., C).

    Members say over what mean and variance are taken. A following ReLU is absorbed.
    """

    bfloat16, flops = "", 0.0
    #: True if all samples share mean and variance
    shared: bool

    def __init__(self, *, eps: float = 1e-5):
        if not eps > 0:
            raise UserError(f"eps of {type(self).__name__} must be greater than 0, got {eps!r}; mend the model")
        self.eps = eps

    def setup(self, input_shape: Shape, index: int) -> Shape:
        self.shape, self.channels = input_shape, input_shape[-1]
        self.places = prod(input_shape) // self.channels
        self.params = {"weight": Param((self.channels,), (0,)), "bias": Param((self.channels,), (0,))}
        return input_shape

    def initial(self, seed: int) -> Arrays:
        return {"weight": np.ones(self.channels, np.float32)}

    def bind(self, params: Arrays, grads: Arrays, workspace: Workspace) -> None:
        super().bind(params, grads, workspace)
        n, self.max_batch = workspace.max_batch, workspace.max_batch
        # of each pass that waits for its backward pass, or of each of its samples
        n_sets = workspace.n_kept * (1 if self.shared else n)
        self.y = workspace.output(self.shape)
        blocks = blocking(1, self.channels, self.y.itemsize).types
        self.lanes, self.tail, self.floor = blocks[0], blocks[-1], 0.0 if self.relu else -np.inf
        self.moments, self.sums = (
            workspace.array((n, 2, self.channels), "float64"),
            workspace.array((n, 2, self.channels)),
        )
        #: mean, variance and 1 / sqrt(variance + eps); mean, scale and shift as the loops take them
        self.found = workspace.array((n_sets, 3, self.channels), "float64")
        self.by_channel = workspace.array((n_sets, 3, self.channels))
        self.of_means = workspace.array((1 if self.shared else n, 2, self.channels))

    def _sets(self, x: np.ndarray, state: Pass) -> slice:
        """Return the rows of ``found`` and ``by_channel`` for a pass."""
        if self.shared:
            return slice(state.first // self.max_batch, state.first // self.max_batch + 1)
        return slice(state.first, state.first + len(x))

    def _run(self, loop: Callable[..., None], *args: Any) -> None:
        self.threads.run(loop, self.lanes, self.tail, *args)

    def _moments(self, x: np.ndarray) -> np.ndarray:
        """Return each sample's means and sums of squares, (n, 2, channels) float64."""
        moments = self.moments[: len(x)]
        self._run(loops.sample_moments, x.reshape(len(x), -1), self.sums, moments)
        return moments

    def forward(self, x: np.ndarray, state: Pass) -> np.ndarray:
        return self.forward_sum(x, None, self.y[state.first : state.first + len(x)], state)

    def forward_sum(self, x: np.ndarray, around: np.ndarray | None, y: np.ndarray, state: Pass) -> np.ndarray:
        """Write the output plus ``around``, with an absorbed ReLU behind the sum, to ``y``; return it."""
        self._prepare(x, state)
        n, by_channel = len(x), self.by_channel[self._sets(x, state)]
        around = None if around is None else around.reshape(n, -1)
        self._run(loops.normalize, x.reshape(n, -1), by_channel, around, self.floor, y.reshape(n, -1))
        return y

    def backward(self, x: np.ndarray, dy: np.ndarray, state: Pass, need_dx: bool) -> np.ndarray | None:
        self._gradients(x, self._gradient_sums(x, dy, None, None, state), state)
        return self._input_gradient(x, dy, self.floor, dy, state) if need_dx else None

    def backward_sum(self, x: np.ndarray, dy: np.ndarray, y: np.ndarray, around: np.ndarray, state: Pass) -> np.ndarray:
        """Do the same for the sum ``y``: write the gradient of what goes around to ``around``; return the input's."""
        self._gradients(x, self._gradient_sums(x, dy, y.reshape(len(x), -1), around.reshape(len(x), -1), state), state)
        return self._input_gradient(x, around, -np.inf, dy, state)

    def _prepare(self, x: np.ndarray, state: Pass) -> None:
        """Write ``found`` and ``by_channel`` for a pass."""
        raise NotImplementedError

    def _gradients(self, x: np.ndarray, sums: np.ndarray, state: Pass) -> None:
        """Write the gradients of weight and bias, and ``of_means``."""
        raise NotImplementedError

    def _gradient_sums(self, x: np.ndarray, dy: np.ndarray, y: Any, around: Any, state: Pass) -> np.ndarray:
        """Return each sample's sums of dy and of dy * (x - mean), (n, 2, channels); 0 where a ReLU is off."""
        n, sums, by_channel = len(x), self.sums[: len(x)], self.by_channel[self._sets(x, state)]
        given = x.reshape(n, -1), dy.reshape(n, -1), by_channel
        self._run(loops.gradient_sums, *given, self.floor, y, around, sums)
        return sums

    def _input_gradient(self, x: np.ndarray, dy: np.ndarray, floor: float, dx: np.ndarray, state: Pass) -> np.ndarray:
        n, by_channel = len(x), self.by_channel[self._sets(x, state)]
        given = x.reshape(n, -1), dy.reshape(n, -1), by_channel
        self._run(loops.input_gradient, *given, floor, self.of_means[: len(by_channel)], dx.reshape(n, -1))
        return dx


class BatchNorm(Normalization):
    """Normalization by mean and variance of each channel over a worker's samples of a pass (Ioffe and Szegedy 2015).

    Evaluation takes running means of both, which a step moves by ``momentum`` towards those of the batch, as PyTorch's
    ``BatchNorm2d``: the variance among them is the unbiased one. They are tensors that the optimizer does not train;
    workers average them with their gradients, weighted by samples. One number a channel has the variance 0.

    Parameters
    ----------
    eps : float
    momentum : float
        In (0, 1].
    """

    shared, whole = True, True

    def __init__(self, *, eps: float = 1e-5, momentum: float = 0.1):
        super().__init__(eps=eps)
        if not 0 < momentum <= 1:
            raise UserError(f"momentum of BatchNorm must lie in (0, 1], got {momentum!r}; mend the model")
        self.momentum = momentum

    def setup(self, input_shape: Shape, index: int) -> Shape:
        shape = super().setup(input_shape, index)
        statistics = {name: Param((self.channels,), (0,), trained=False) for name in ("running_mean", "running_var")}
        self.params = {**self.params, **statistics}
        return shape

    def initial(self, seed: int) -> Arrays:
        return {**super().initial(seed), "running_var": np.ones(self.channels, np.float32)}

    def _prepare(self, x: np.ndarray, state: Pass) -> None:
        sets, of_weight = self._sets(x, state), (self.eps, self.p["weight"], self.p["bias"])
        found, by_channel = self.found[sets][0], self.by_channel[sets]
        if state.train:
            loops.of_batch(self._moments(x), self.places, *of_weight, found, by_channel)
        else:
            loops.of_running(self.p["running_mean"], self.p["running_var"], *of_weight, found, by_channel)

    def _gradients(self, x: np.ndarray, sums: np.ndarray, state: Pass) -> None:
        found, total, g = self.found[self._sets(x, state)][0], len(x) * self.places, self.g
        loops.batch_gradients(
            sums, total, self.p["weight"], found, state.adds, g["weight"], g["bias"],
            self.of_means,
        )  # fmt: skip

    def note_statistics(self, n: int, state: Pass) -> None:
        found, p, g = self.found[state.first // self.max_batch], self.p, self.g
        loops.statistics_gradients(
            found, n * self.places, n, self.momentum, state.adds, p["running_mean"], p["running_var"],
            g["running_mean"], g["running_var"],
        )  # fmt: skip


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

    def _prepare(self, x: np.ndarray, state: Pass) -> None:
        sets = self._sets(x, state)
        loops.of_groups(
            self._moments(x), self.places, self.groups, self.eps, self.p["weight"], self.p["bias"], self.found[sets],
            self.by_channel[sets],
        )  # fmt: skip

    def _gradients(self, x: np.ndarray, sums: np.ndarray, state: Pass) -> None:
        loops.group_gradients(
            sums, self.places, self.groups, self.p["weight"],
            self.found[self._sets(x, state)], state.adds, self.g["weight"], self.g["bias"], self.of_means,
        )  # fmt: skip


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


def normalization(name: Norm, channels: int) -> Layer:
    """Return a layer of :data:`TABLE` for so many channels."""
    return TABLE[name](channels)


TABLE: dict[str, Callable[[int], Layer]] = {
    "batch": lambda channels: BatchNorm(),
    "group": lambda channels: GroupNorm(gcd(channels, GROUPS)),
    "layer": lambda channels: LayerNorm(),
}
