"""Model parallelism (:class:`Split`): layers with output channels split among ranks that compute the same samples.

Each rank has the weights of its channels. In forward, the ranks gather their channels in shared memory. In backward,
each has a part of the input's gradient; all sum the parts in the order of the shards. So every rank has the same bits,
equal to those of one process but for the order of that sum.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from psframe.cluster.cluster import Cluster
from psframe.collectives.base import cut
from psframe.errors import UserError
from psframe.memory.allocator import Allocator, shared_block
from psframe.nn.base import Arrays, BaseLayer, Layer, Param, Pass, Shape
from psframe.nn.conv import Conv2d
from psframe.nn.dense import Dense
from psframe.nn.network import Network
from psframe.nn.precision import narrow, widen
from psframe.nn.workspace import Workspace
from psframe.record.clock import CLOCK
from psframe.record.traffic import Traffic


class ShardGroup:
    """Ranks with the shards of a layer, all on one node.

    Parameters
    ----------
    cluster : Cluster
        Cluster of these ranks.
    allocator : Allocator
    most : int
        Elements of the largest gradient that they sum.
    dtype : str
        Type of activations and their gradients in memory; ``uint16`` holds bfloat16.
    """

    def __init__(self, cluster: Cluster, allocator: Allocator, most: int, dtype: str = "float32"):
        self.cluster, self.allocator = cluster, allocator
        self.traffic, self.waited_s = Traffic(), 0.0
        self.slots = self.shared((cluster.n_ranks, most))
        self.wide = allocator.zeros((2, most if dtype == "uint16" else 0), np.float32, "exchange")

    def shared(self, shape: Shape, dtype: str = "float32") -> np.ndarray:
        """Return a shared array; all ranks of the crew must call, with the same arguments in the same order."""
        n_bytes = prod(shape) * np.dtype(dtype).itemsize
        memory = shared_block(self.allocator, n_bytes, "exchange", self.cluster.rank == 0, "crew")
        return memory[:n_bytes].view(dtype).reshape(shape)

    def meet(self) -> None:
        """Wait at a barrier of the crew."""
        began = CLOCK.now()
        self.cluster.rendezvous.together()
        self.waited_s += CLOCK.now() - began

    def sum(self, own: np.ndarray) -> None:
        """Replace ``own``, contiguous, by its sum over the crew. All its ranks must call.

        The sum of bfloat16 is float32, and is rounded at its end.
        """
        flat = own.reshape(-1)
        slots = self.slots.view(flat.dtype)[:, : len(flat)]
        self.meet()  # no rank reads the previous contents any more
        slots[self.cluster.rank] = flat
        self.meet()
        if flat.dtype == np.uint16:
            total, wide = self.wide[:, : len(flat)]
            widen(slots[0], total)
            for slot in slots[1:]:
                widen(slot, wide)
                total += wide
            narrow(total, flat)
        else:
            np.copyto(flat, slots[0])
            for slot in slots[1:]:
                flat += slot
        self.traffic.sum(own.nbytes, 1 + len(slots))


class Split(BaseLayer):
    """Layer of which this rank has one shard.

    Parameters
    ----------
    layer : Dense or Conv2d
        Full layer; :meth:`setup` reduces it to the shard's channels.
    n_shards, shard : int
    """

    together = True

    def __init__(self, layer: Any, n_shards: int, shard: int):
        self.layer, self.n_shards, self.shard = layer, n_shards, shard
        self.crew: ShardGroup

    @property
    def kind(self) -> str:
        return type(self.layer).__name__

    @property
    def whole(self) -> bool:  # type: ignore[override]
        return bool(self.layer.whole)

    @property
    def bfloat16(self) -> str:  # type: ignore[override]
        return str(self.layer.bfloat16)

    def setup(self, input_shape: Shape, index: int) -> Shape:
        n = channels(self.layer)
        share = cut(n, self.n_shards, self.shard)
        self.own = share
        shape: Shape = self.layer.setup(input_shape, index)
        setattr(self.layer, _key(self.layer), share.stop - share.start)
        self.layer.setup(input_shape, index)
        self.params: Mapping[str, Param] = {
            name: Param((share.stop - share.start, *p.shape[1:]), p.order, p.bound, p.trained, share.start, n)
            for name, p in self.layer.params.items()
        }
        self.shape = shape
        return shape

    def absorb(self, following: Layer) -> bool:
        return bool(self.layer.absorb(following))

    def bind(self, params: Arrays, grads: Arrays, workspace: Workspace) -> None:
        self.layer.bind(params, grads, workspace)
        self.dy = workspace.batch((*self.shape[:-1], self.own.stop - self.own.start))
        self.y = self.crew.shared((workspace.n_kept * workspace.max_batch, *self.shape), workspace.output_dtype)

    def use(self, params: Arrays) -> None:
        self.layer.use(params)

    def forward(self, x: np.ndarray, state: Pass) -> np.ndarray:
        own_y = self.layer.forward(x, state)
        y: np.ndarray = self.y[state.first : state.first + len(x)]
        self.crew.meet()  # no rank reads the previous contents any more
        y[..., self.own] = own_y
        self.crew.traffic.sum(own_y.nbytes, 1)
        self.crew.meet()
        return y

    def backward(self, x: np.ndarray, dy: np.ndarray, state: Pass, need_dx: bool) -> Any:
        own_dy = self.dy[: len(x)]
        np.copyto(own_dy, dy[..., self.own])
        dx = self.layer.backward(x, own_dy, state, need_dx)
        if need_dx:
            self.crew.sum(dx)
        return dx


def _key(layer: Any) -> str:
    """Return the name of a layer's attribute with its output channels; "" if it cannot be split."""
    if isinstance(layer, Conv2d) and layer.groups == 1:
        return "out_channels"
    return "out_features" if isinstance(layer, Dense) else ""


def channels(layer: Any) -> int:
    """Return the output channels of a layer; 0 if it cannot be split."""
    key = _key(layer)
    return getattr(layer, key) if key else 0


def split(layers: Sequence[Any], n_shards: int, shard: int, kinds: tuple[type, ...] = (Dense, Conv2d)) -> Sequence[Any]:
    """Return ``layers``, with those of ``kinds`` that have at least ``n_shards`` channels split."""
    if n_shards == 1 or not isinstance(layers, Sequence):
        return layers
    return [
        Split(layer, n_shards, shard) if isinstance(layer, kinds) and channels(layer) >= n_shards else layer
        for layer in layers
    ]


def check(network: Network, n_shards: int) -> None:
    """Raise UserError if no layer is split."""
    if n_shards > 1 and not any(isinstance(layer, Split) for layer in network.layers):
        raise UserError(
            f"parallel.model must have a layer to split, a Dense or Conv2d of psframe's with as many channels, got "
            f"{n_shards} shards of a model without; give parallel.model=1, and parallel.pipeline or more replicas"
        )
