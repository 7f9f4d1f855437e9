"""Fully connected layer (:class:`Dense`)."""

import numpy as np

from psframe.errors import UserError
from psframe.nn.activations import BeforeReLU
from psframe.nn.base import Arrays, Param, Pass, Shape
from psframe.nn.checks import bound, whole
from psframe.nn.dense.kernels import Direct, Matmul
from psframe.nn.workspace import Workspace

KERNELS: dict[str, type[Direct] | type[Matmul]] = {"direct": Direct, "winograd": Direct, "blas": Matmul}


class Dense(BeforeReLU):
    """y = x W^T + b; input (n, F), output (n, out_features).

    Parameters
    ----------
    out_features : int
    init : {'xavier', 'he'}
        See :func:`psframe.nn.checks.bound`; the bias starts at 0.
    """

    whole = True

    def __init__(self, out_features: int, *, init: str = "xavier"):
        self.out_features = whole("out_features", out_features, 1)
        self.init = init

    def setup(self, input_shape: Shape, index: int) -> Shape:
        if len(input_shape) != 1:
            raise UserError(f"layer {index}, Dense, must get rows (F,), got {input_shape}; put a Flatten before it")
        self.features, out = input_shape[0], self.out_features
        self.params = {
            "weight": Param((out, self.features), (1, 0), bound(self.init, self.features)),
            "bias": Param((out,), (0,)),
        }
        return (out,)

    def bind(self, params: Arrays, grads: Arrays, workspace: Workspace) -> None:
        super().bind(params, grads, workspace)
        self.y, self.dx = workspace.output((self.out_features,)), workspace.input_gradient((self.features,))
        self.kernels = KERNELS[workspace.kernels](self.p, self.g, self.relu, workspace)

    def forward(self, x: np.ndarray, state: Pass) -> np.ndarray:
        y = self.y[state.first : state.first + len(x)]
        self.kernels.forward(x, y)
        return y

    def backward(self, x: np.ndarray, dy: np.ndarray, state: Pass, need_dx: bool) -> np.ndarray | None:
        y, dx = self.y[state.first : state.first + len(x)], self.dx[: len(x)]
        self.kernels.backward(x, y, dy, dx, need_dx, state.adds)
        return dx if need_dx else None
