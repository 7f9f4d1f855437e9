"""Shortcuts: :class:`Residual` adds what goes through some layers to what goes around, :class:`Subsample` fits it."""

from collections.abc import Sequence

import numpy as np

from psframe.errors import UserError
from psframe.nn.activations import BeforeReLU, relu_backward
from psframe.nn.base import Arrays, BaseLayer, Layer, Pass, Shape, widest
from psframe.nn.chain import Chain
from psframe.nn.checks import image, whole
from psframe.nn.checks import layers as checked
from psframe.nn.jit import jit
from psframe.nn.normalization import Normalization
from psframe.nn.pairs import as_number, number_as
from psframe.nn.parts import share
from psframe.nn.reads import Reads, of
from psframe.nn.steps import Stepping, Steps
from psframe.nn.workspace import Workspace


class Residual(Stepping, BeforeReLU):
    """y = body(x) + shortcut(x) (He et al. 2016, eq. 2); a following ReLU is absorbed.

    The tensors of its layers are numbered from the body's first layer to the shortcut's last.

    Parameters
    ----------
    body : sequence of Layer
    shortcut : sequence of Layer
        None at all, by default: the shortcut is the input itself.
    """

    def __init__(self, body: Sequence[Layer], shortcut: Sequence[Layer] = ()):
        self.body = Chain(checked(body, "body of Residual"))
        self.shortcut = Chain(checked(shortcut, "shortcut of Residual", least=0))
        self.chains = self.body, self.shortcut

    @property
    def reads(self) -> Reads:  # type: ignore[override]
        ways = [of(layer for _, layer in chain.active) for chain in self.chains]
        of_output = self.relu or self.last is not None  # which tells where its ReLU is off
        return Reads(sum(way.forward for way in ways), sum(way.backward for way in ways), int(of_output))

    @property
    def bfloat16(self) -> str:  # type: ignore[override]
        layers = [*self.body.layers, *self.shortcut.layers]
        return "arrays" if all(one.bfloat16 == "arrays" for one in layers) else ""

    def setup(self, input_shape: Shape, index: int) -> Shape:
        shape = self.body.setup(input_shape, index, 0, "body")
        around = self.shortcut.setup(input_shape, index, len(self.body.layers), "shortcut")
        if shape != around:
            raise UserError(
                f"layer {index}, Residual, must get one shape from body and shortcut, got {shape} and {around}; give a "
                "shortcut that returns the body's"
            )
        self.input_shape, self.shape = input_shape, shape
        #: the body's last layer if it sums up, while its numbers are in registers
        self.last: Normalization | None = self.body.give_last(Normalization)
        if self.last:
            self.last.has_output = False
        self.params = {**self.body.params, **self.shortcut.params}
        layers = [*self.body.layers, *self.shortcut.layers]
        self.whole, self.together = any(one.whole for one in layers), any(one.together for one in layers)
        self.meets = widest(layers)
        self.flops = self.body.flops + self.shortcut.flops
        return shape

    def absorb(self, following: Layer) -> bool:
        absorbs = super().absorb(following)
        if self.last and absorbs:
            self.last.absorb(following)
        return absorbs

    def bind(self, params: Arrays, grads: Arrays, workspace: Workspace) -> None:
        self.threads = workspace.threads
        self.body.bind(params, grads, workspace.branch("body"))
        self.shortcut.bind(params, grads, workspace.branch("shortcut"))
        self.y, self.dx = workspace.output(self.shape), workspace.input_gradient(self.input_shape)
        #: by a pass's first sample: the input of the last layer
        self.through: dict[int, np.ndarray] = {}
        #: gradients of what goes around, and, while the shortcut waits for a meeting, of what went through
        self.around = workspace.held(self.shape)
        waits = workspace.in_step and widest(self.shortcut.layers)
        self.waiting = workspace.branch("waiting").held(self.input_shape) if waits else None

    def use(self, params: Arrays) -> None:
        for chain in self.chains:
            chain.use(params)

    def initial(self, seed: int) -> Arrays:
        return {**self.body.initial(seed), **self.shortcut.initial(seed)}

    def describe(self) -> str:
        return f"Residual([{self.body.describe()}], [{self.shortcut.describe()}])"

    def note_statistics(self, n: int, state: Pass) -> None:
        for chain in self.chains:
            chain.note_statistics(n, state)

    def forward_steps(self, x: np.ndarray, state: Pass) -> Steps[np.ndarray]:
        y = self.y[state.first : state.first + len(x)]
        through = yield from self.body.forward(x, state)
        around = yield from self.shortcut.forward(x, state)
        if self.last:
            self.through[state.first] = through
            return (yield from self.last.forward_steps(through, state, around, y))
        self.threads.run(add, through.reshape(-1), around.reshape(-1), self.relu, y.reshape(-1))
        return y

    def backward_steps(self, x: np.ndarray, dy: np.ndarray, state: Pass, need_dx: bool) -> Steps[np.ndarray | None]:
        y, around = self.y[state.first : state.first + len(x)], self.around.rows(state.first, len(x))
        # layers may overwrite what they are given, so each way has its own
        if self.last:
            through = self.through[state.first]
            dy = yield from self.last.backward_steps(through, dy, state, True, y, around)  # type: ignore[assignment]
        else:
            if self.relu:
                relu_backward(dy.reshape(-1), y.reshape(-1))
            around[...] = dy
        # the ways have memory of their own: one's result outlives the other's pass
        of_body = yield from self.body.backward(dy, state, need_dx)
        if self.waiting and need_dx:
            waiting = self.waiting.rows(state.first, len(x))
            waiting[...] = of_body
            of_body = waiting
        of_shortcut = yield from self.shortcut.backward(around, state, need_dx)
        if not need_dx:
            return None
        dx = self.dx[: len(x)]
        self.threads.run(add, of_shortcut.reshape(-1), of_body.reshape(-1), False, dx.reshape(-1))
        return dx


class Subsample(BaseLayer):
    """Every ``stride``-th place, and further channels of zeros: a shortcut without weights (He et al. 2016, option A).

    Parameters
    ----------
    channels : int
        Of the output, at least as many as of the input; half of the new ones come first.
    stride : int
    """

    bfloat16 = "arrays"
    reads = Reads(1, 0, 0)

    def __init__(self, channels: int, stride: int = 1):
        self.channels, self.stride = whole("channels", channels, 1), whole("stride", stride, 1)

    def setup(self, input_shape: Shape, index: int) -> Shape:
        h, w, c = image(self, index, input_shape)
        if c > self.channels:
            raise UserError(
                f"layer {index}, Subsample, must get at most {self.channels} channels, got {c}; mend the model"
            )
        self.input_shape, self.begin = input_shape, (self.channels - c) // 2
        self.shape = -(-h // self.stride), -(-w // self.stride), self.channels
        return self.shape

    def bind(self, params: Arrays, grads: Arrays, workspace: Workspace) -> None:
        super().bind(params, grads, workspace)
        self.y, self.dx = workspace.kept(self.shape), workspace.input_gradient(self.input_shape)
        self.inside = slice(self.begin, self.begin + self.input_shape[2])

    def forward(self, x: np.ndarray, state: Pass) -> np.ndarray:
        y = self.y[state.first : state.first + len(x)]
        y[...] = 0
        y[..., self.inside] = x[:, :: self.stride, :: self.stride]
        return y

    def backward(self, x: np.ndarray, dy: np.ndarray, state: Pass, need_dx: bool) -> np.ndarray | None:
        if not need_dx:
            return None
        dx = self.dx[: len(x)]
        dx[...] = 0
        dx[:, :: self.stride, :: self.stride] = dy[..., self.inside]
        return dx


@jit
def add(part, n_parts, a, b, relu, y):
    """Write ``a`` + ``b`` to ``y``, all (m,), with ``relu`` negative sums as 0; ``y`` may be one of them."""
    own, floor = share(len(y), part, n_parts), np.float32(0 if relu else -np.inf)
    a, b, y = a[own.start : own.stop], b[own.start : own.stop], y[own.start : own.stop]
    for i in range(len(y)):  # from 0 on, so that no index may be negative, and LLVM takes vectors
        z = as_number(a[i]) + as_number(b[i])
        y[i] = number_as(floor if z < floor else z, y)
