"""Computation of a pipeline stage (:class:`Pipeline`): its layers, on one micro-batch after the other."""

from collections.abc import Sequence

import numpy as np

from psframe.collectives.base import cut
from psframe.config.schema import Parallel
from psframe.nn.base import LayerHook, Pass
from psframe.nn.losses import softmax_cross_entropy
from psframe.nn.network import Network, Observer
from psframe.record.clock import CLOCK
from psframe.record.trace import UNTRACED, Trace
from psframe.record.traffic import Traffic
from psframe.sync.sampler import Sampler
from psframe.train.compute.local import Work
from psframe.train.compute.parallel.channel import Channel
from psframe.train.compute.parallel.grid import Grid
from psframe.train.compute.parallel.schedule import Kind, most_kept, turns
from psframe.train.compute.parallel.split import ShardGroup
from psframe.train.data.batches import Batches

A_STAGE = 4  # default micro-batches per stage, which keep the bubble small (Huang et al. 2019)


class Pipeline(Work):
    """Computation of a worker's samples in micro-batches, whose gradients are summed in order.

    Parameters
    ----------
    network : Network
        Layers of this rank's stage.
    n_micro : int
        Micro-batches of a step.
    kind : str
        Schedule, one of :mod:`psframe.train.compute.parallel.schedule`.
    recompute : bool
        True to repeat a micro-batch's forward pass before its backward pass, so that only one keeps its activations.
    crew : ShardGroup, or None
        Ranks with the other shards of its layers.
    before, after : pair of Channel, or None
        Channels to the previous stage (activations in, gradients out) and the next one (activations out, gradients in).
    trace : Trace
        Traces each micro-batch, and waits for other stages.
    """

    several = True

    def __init__(
        self,
        sampler: Sampler,
        network: Network,
        batches: Batches,
        grid: Grid,
        n_micro: int,
        kind: Kind,
        recompute: bool,
        before: tuple[Channel, Channel] | None,
        after: tuple[Channel, Channel] | None,
        crew: ShardGroup | None = None,
        trace: Trace = UNTRACED,
    ):
        super().__init__(sampler, network, batches)
        self.grid, self.n_micro, self.recompute, self.trace = grid, n_micro, recompute, trace
        self.before, self.after, self.reports_loss = before, after, after is None and grid.shard == 0
        self.waits: list[Channel | ShardGroup] = [channel for pair in (before, after) if pair for channel in pair]
        self.waits += [crew] if crew else []
        self.most = micro(sampler, n_micro)
        self.n_inputs = most_kept(kind, n_micro, grid.n_stages, grid.stage)
        self.plans = {n: turns(kind, n, grid.n_stages, grid.stage) for n in range(n_micro + 1)}
        self.loading_s = 0.0
        self.inputs: list[np.ndarray] = [np.empty(0)] * n_micro
        self.outputs: list[np.ndarray] = [np.empty(0)] * n_micro

    def warm(self) -> None:
        """Pass one sample forward and back, so that every kernel is compiled."""
        state = Pass(True, 0, 0, np.zeros(1, np.int64))
        y = self.network.forward(self.network.zeros(), state)
        self.network.backward(np.zeros_like(y), state)
        if not self.after:
            softmax_cross_entropy(y, np.zeros(1, np.int64), np.zeros_like(y))

    def gradients(
        self, mine: np.ndarray, n_samples: int, epoch: int, losses: np.ndarray, hook: LayerHook | None = None
    ) -> float:
        self.loading_s = 0.0
        n = min(self.n_micro, len(mine))  # the last step may have fewer samples
        if not n:
            self.network.arena.grads[:] = 0
        for direction, number in self.plans[n]:
            began = CLOCK.now()
            waited_s = self.waited_s
            share = cut(len(mine), n, number)
            if direction == "forward":
                self._forward(number, self._state(mine[share], number, epoch))
            else:
                losses[0] += self._backward(number, self._state(mine[share], number, epoch)) * self.reports_loss
            if self.trace.on:
                waited_s = self.waited_s - waited_s  # most of it passes at the beginning, in receive
                self.trace.add("stall", began, began + waited_s)
                self.trace.add(f"{direction} {number}", began + waited_s)
        self._end()
        if hook:
            hook.call(slice(0, self.network.layout.size))
        return self.loading_s

    def _end(self) -> None:
        """Finish a step after its last micro-batch."""

    def _state(self, samples: np.ndarray, number: int, epoch: int) -> Pass:
        first = 0 if self.recompute else number % self.n_inputs * self.most
        return Pass(True, self.sampler.seed, epoch, samples, first, number > 0)

    def _forward(self, number: int, state: Pass) -> None:
        self.inputs[number], self.outputs[number] = self._through(state, "train", number % self.n_inputs * self.most)

    def _through(self, state: Pass, split: str, at: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Receive or load samples, pass them through the stage, and send the output on; return input and output.

        ``at`` is the first sample's row in the buffer of loaded inputs.
        """
        if self.before:
            x = self.before[0].receive(len(state.samples))
        else:
            began = CLOCK.now()
            x = self.batches.load(split, state.samples, state.epoch, at)
            self.loading_s += CLOCK.now() - began
        y = self.network.forward(x, state)
        if self.after:
            self.after[0].send(y)
        return x, y

    def _backward(self, number: int, state: Pass) -> float:
        """Write, or add, the gradients of a micro-batch; return its loss, 0 except on the last stage."""
        loss, n = 0.0, len(state.samples)
        dy = self.after[1].receive(n) if self.after else self.network.dlogits[:n]
        if self.recompute:
            self.outputs[number] = self.network.forward(self.inputs[number], state)
        if not self.after:
            targets = self.batches.targets_of(state.samples, state.epoch)
            loss, _ = softmax_cross_entropy(self.outputs[number], targets, dy)
        dx = self.network.backward(dy, state)
        if self.after:
            self.after[1].free()
        if self.before and dx is not None:
            self.before[1].send(dx)
            self.before[0].free()
        return loss

    @property
    def waited_s(self) -> float:
        return sum(other.waited_s for other in self.waits)

    def begin(self) -> None:
        super().begin()
        for other in self.waits:
            other.waited_s = 0.0

    def evaluate(self, n_test: int, n_ranks: int, rank: int, also: Observer | None = None) -> np.ndarray:
        """Return the losses and hits, (1, 2), of a replica's share of the test set; 0 except on its last stage."""
        share, sums = cut(n_test, self.grid.n_replicas, self.grid.replica), np.zeros((1, 2))
        for lo in range(share.start, share.stop, self.most):
            samples = np.arange(lo, min(lo + self.most, share.stop))
            _, y = self._through(Pass(samples=samples), "test")
            if not self.after:
                labels = self.batches.labels_of("test", samples)
                found = softmax_cross_entropy(y, labels, self.networks[-1].dlogits[:0])
                sums[0] += np.multiply(found, self.reports_loss)
                if also and self.reports_loss:
                    also(y, labels)
            if self.before:
                self.before[0].free()
        return sums

    def traffics(self) -> Sequence[Traffic]:
        return [other.traffic for other in self.waits]


def micro_batches(parallel: Parallel, sampler: Sampler) -> int:
    """Return the number of micro-batches of a step, as configured; each has at least one sample."""
    return min(wanted(parallel), sampler.max_batch)


def wanted(parallel: Parallel) -> int:
    """Return the number of micro-batches of a step that has samples enough."""
    if parallel.micro_batches == "auto":
        return A_STAGE * parallel.pipeline if parallel.pipeline > 1 else 1
    return parallel.micro_batches


def micro(sampler: Sampler, n_micro: int) -> int:
    """Return the maximum samples of a micro-batch."""
    return -(-sampler.max_batch // n_micro)
