"""Batch normalization (:class:`BatchNorm`): over the samples of a worker, or of all."""

from typing import Literal

import numpy as np

from psframe.errors import UserError, nearest
from psframe.nn.base import Arrays, Param, Pass, Shape
from psframe.nn.checks import number
from psframe.nn.normalization import loops
from psframe.nn.normalization.base import Normalization
from psframe.nn.steps import Meeting
from psframe.nn.workspace import Workspace

Over = Literal["batch", "workers"]


class BatchNorm(Normalization):
    """Normalization by mean and variance of each channel over the samples of a step (Ioffe and Szegedy 2015).

    Evaluation takes running means of both, which a step moves by ``momentum`` towards those of the batch, as PyTorch's
    ``BatchNorm2d``: the variance among them is the unbiased one. They are tensors that the optimizer does not train;
    workers average them with their gradients, weighted by samples. One number a channel has the variance 0.

    Parameters
    ----------
    over : {'batch', 'workers'}
        ``batch``: the samples of a worker, or of a block with ``train.reproducible: any_workers``. ``workers``: those
        of all workers, which then wait for each other in each such layer, forward and backward. Sums are taken by
        sample, then by worker or block, and these in their order: with ``any_workers`` the bits are those of one
        worker.
    eps : float
    momentum : float
        In (0, 1].
    """

    shared = True

    def __init__(self, *, over: Over = "batch", eps: float = 1e-5, momentum: float = 0.1):
        super().__init__(eps=eps)
        if over not in (known := ("batch", "workers")):
            raise UserError(f"over of BatchNorm must name samples, got {over!r}; {nearest(over, known)}")
        self.meets = over
        self.momentum = number("momentum of BatchNorm", momentum, "lie in (0, 1]", lambda value: 0 < value <= 1)

    def setup(self, input_shape: Shape, index: int) -> Shape:
        shape = super().setup(input_shape, index)
        statistics = {name: Param((self.channels,), (0,), trained=False) for name in ("running_mean", "running_var")}
        self.params = {**self.params, **statistics}
        return shape

    def initial(self, seed: int) -> Arrays:
        return {**super().initial(seed), "running_var": np.ones(self.channels, np.float32)}

    def bind(self, params: Arrays, grads: Arrays, workspace: Workspace) -> None:
        super().bind(params, grads, workspace)
        self.others = workspace.others if self.meets == "workers" else None
        #: by place of a batch: samples, and two sums of each channel over these, of means and squares or of gradients
        self.blocks = workspace.array((workspace.n_kept, 1 + 2 * self.channels), "float64")
        #: by place: numbers of a channel that its mean is taken over
        self.totals = np.zeros(workspace.n_kept)
        #: samples that count, by place, of the batches that have come to the next meeting
        self.here: dict[int, slice] = {}

    def _come(self, state: Pass) -> None:
        place = self._place(state)
        self.here[place] = slice(0) if state.idle else self._rows(place)

    def _together(self) -> list[tuple[int, np.ndarray]]:
        """Return the places of the batches that are here, each with the blocks that meet there; then none is here."""
        places = sorted(self.here)
        self.here.clear()
        blocks = self.blocks[places[0] : places[-1] + 1]
        if self.meets == "batch":
            return [(place, blocks[place - places[0]][None]) for place in places]
        blocks = self.others.gather(blocks) if self.others else blocks
        return [(place, blocks) for place in places]

    def _prepare(self, x: np.ndarray, state: Pass) -> Meeting | None:
        if state.train:
            self._observe(x, state)
            self._come(state)
            return self._find
        place, p = self._place(state), self.p
        of_weight = self.eps, p["weight"], p["bias"]
        given = p["running_mean"], p["running_var"]
        loops.of_running(*given, *of_weight, self.found[place], self.by_channel[place])
        return None

    def _find(self) -> None:
        """Write mean and variance for the batches that are here."""
        for place, rows in self.here.items():
            loops.fold_moments(self.moments[rows], self.places, self.blocks[place])
        of_weight = self.eps, self.p["weight"], self.p["bias"]
        for place, blocks in self._together():
            self.totals[place] = blocks[:, 0].sum() * self.places
            loops.of_blocks(blocks, self.places, *of_weight, self.found[place], self.by_channel[place])

    def _gradients(self, x: np.ndarray, state: Pass) -> Meeting | None:
        self._come(state)
        return self._find_gradients

    def _find_gradients(self) -> None:
        """Write what reaches the inputs of the batches that are here through mean and variance."""
        for place, rows in self.here.items():
            loops.fold_sums(self.sums[rows], self.blocks[place])
        for place, blocks in self._together():
            found, means = self.found[place], self.of_means[place]
            loops.of_block_means(blocks, self.totals[place], self.p["weight"], found, means)

    def _of_parameters(self, x: np.ndarray, state: Pass) -> None:
        place, g = self._place(state), self.g
        loops.block_gradients(self.blocks[place], self.found[place], state.adds, g["weight"], g["bias"])

    def note_statistics(self, n: int, state: Pass) -> None:
        place, p, g = self._place(state), self.p, self.g
        loops.statistics_gradients(
            self.found[place], self.totals[place], n, self.momentum, state.adds, p["running_mean"], p["running_var"],
            g["running_mean"], g["running_var"],
        )  # fmt: skip
