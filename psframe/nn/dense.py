"""The fully connected layer."""

import numpy as np

from psframe.errors import UserError
from psframe.nn.base import Base, Buffer, Param, Pass, Shape
from psframe.nn.checks import bound, whole
from psframe.nn.sums import column_sums


class Dense(Base):
    """y = x W^T + b; input (n, F), output (n, out_features).

    Parameters
    ----------
    out_features : int
    init : {'xavier', 'he'}
        See :func:`psframe.nn.checks.bound`; the bias starts at 0.
    """

    def __init__(self, out_features: int, *, init: str = "xavier"):
        self.out_features = whole("out_features", out_features, 1)
        self.init = init

    def setup(self, input_shape: Shape, index: int) -> Shape:
        if len(input_shape) != 1:
            raise UserError(f"layer {index}, Dense, must get rows (F,), got {input_shape}; put a Flatten before it")
        features, out = input_shape[0], self.out_features
        self.params = {
            "weight": Param((out, features), (1, 0), bound(self.init, features)),
            "bias": Param((out,), (0,)),
        }
        self.buffers = {"y": Buffer((out,)), "dx": Buffer((features,))}
        return (out,)

    def forward(self, x: np.ndarray, state: Pass) -> np.ndarray:
        self.x = x
        y = np.matmul(x, self.p["weight"], out=self.b["y"][: len(x)])
        y += self.p["bias"]
        return y

    def backward(self, dy: np.ndarray, need_dx: bool) -> np.ndarray | None:
        np.matmul(self.x.T, dy, out=self.g["weight"])
        column_sums(dy, self.g["bias"])
        return np.matmul(dy, self.p["weight"].T, out=self.b["dx"][: len(dy)]) if need_dx else None
