"""Hybrid parallelism (:class:`Hybrid`): convolutions split by samples, dense layers by channels.

Convolutions have most of the operations and few weights, dense layers few operations and most of the weights
(Krizhevsky 2014, arXiv:1404.5997). So each rank of a crew passes its share of a batch through all channels of the
convolutions; the crew gathers the outputs; and each rank passes all of them through its shard of the dense layers. The
crew sums the gradients of the convolutions only.
"""

import numpy as np

from psframe.collectives.base import cut
from psframe.errors import UserError
from psframe.nn.base import Pass
from psframe.nn.losses import softmax_cross_entropy
from psframe.nn.network import Network
from psframe.record.clock import CLOCK
from psframe.record.trace import UNTRACED, Trace
from psframe.sync.sampler import Sampler
from psframe.train.compute.parallel.grid import Grid
from psframe.train.compute.parallel.pipeline import Pipeline
from psframe.train.compute.parallel.split import ShardGroup, Split
from psframe.train.data.batches import Batches


class Hybrid(Pipeline):
    """Computation of micro-batches one after the other, with convolutions on shares of the samples.

    Parameters
    ----------
    front, rest : Network
        Layers before the first split layer, and from it on: stages that share one arena.
    crew : ShardGroup
    """

    def __init__(
        self,
        sampler: Sampler,
        network: Network,
        batches: Batches,
        grid: Grid,
        n_micro: int,
        front: Network,
        rest: Network,
        crew: ShardGroup,
        trace: Trace = UNTRACED,
    ):
        super().__init__(sampler, network, batches, grid, n_micro, "1f1b", False, None, None, crew, trace)
        self.front, self.rest, self.crew = front, rest, crew
        self.begun = False  # True once the step has written gradients of the front
        self.joined = crew.shared((self.n_inputs * self.most, *front.shape_before(front.own.stop)), front.dtype)
        self.of_front = [self.network.arena.grads[part] for part in parts_of(self.network, front)]

    @property
    def networks(self) -> list[Network]:
        return [self.front, self.rest]

    def warm(self) -> None:
        state = Pass(True, 0, 0, np.zeros(1, np.int64))
        self.rest.forward(self.front.forward(self.front.zeros(), state), state)
        dy = np.zeros((1, self.network.n_classes), np.float32)
        dx = self.rest.backward(dy, state)
        assert dx is not None
        self.front.backward(dx, state)
        softmax_cross_entropy(dy, np.zeros(1, np.int64), dy.copy())

    def _end(self) -> None:
        for part in self.of_front:
            self.crew.sum(part)

    def _through(self, state: Pass, split: str, at: int = 0) -> tuple[np.ndarray, np.ndarray]:
        n, own_pass = len(state.samples), self._own(state)
        y: np.ndarray = self.joined[state.first : state.first + n]
        share = cut(n, self.grid.n_shards, self.grid.shard)
        part = None
        if len(own_pass.samples):
            began = CLOCK.now()
            x = self.batches.load(split, own_pass.samples, state.epoch)
            self.loading_s += CLOCK.now() - began
            part = self.front.forward(x, own_pass)
        self.crew.meet()  # no rank reads the previous contents any more
        if part is not None:
            y[share] = part
            self.crew.traffic.sum(part.nbytes, 1)
        self.crew.meet()
        return y, self.rest.forward(y, state)

    def _own(self, state: Pass) -> Pass:
        """Return the pass of this rank's share of the samples; it may be empty even in a step's first micro-batch."""
        share = cut(len(state.samples), self.grid.n_shards, self.grid.shard)
        self.begun = self.begun and state.adds
        return Pass(state.train, state.seed, state.epoch, state.samples[share], adds=self.begun)

    def _backward(self, number: int, state: Pass) -> float:
        n, own_pass = len(state.samples), self._own(state)
        dy = self.rest.dlogits[:n]
        targets = self.batches.targets_of(state.samples, state.epoch)
        loss, _ = softmax_cross_entropy(self.outputs[number], targets, dy)
        dx = self.rest.backward(dy, state)
        assert dx is not None
        if len(own_pass.samples):
            self.front.backward(dx[cut(n, self.grid.n_shards, self.grid.shard)], own_pass)
            self.begun = True
        elif not state.adds:
            for part in self.of_front:
                part[:] = 0
        return loss


def parts_of(network: Network, front: Network) -> list[slice]:
    """Return the front's parts of the network's vectors: its trained tensors, and its others, which lie behind all."""
    layout = network.layout
    slots = [slot for name, slot in layout.slots.items() if name in front.params]
    trained = [slot for slot in slots if slot.start < layout.n_trained]
    return [slice(part[0].start, part[-1].stop) for part in (trained, slots[len(trained) :]) if part]


def place(network: Network) -> int:
    """Return the index of the first split layer among the active ones, which begins the rest.

    ``network`` has its dense layers split. Raises UserError if no layer with parameters comes before.
    """
    first = next((index for index, (_, layer) in enumerate(network.active) if isinstance(layer, Split)), 0)
    if not first or not network.stage(slice(first)):
        raise UserError(
            "parallel.convolutions: data must have layers with parameters before the first dense one that is split, "
            "got none; give parallel.convolutions=model"
        )
    return first
