"""Computation of a rank (:class:`Work`): a worker's gradients of a step, and a share of the test set."""

from collections.abc import Sequence

import numpy as np

from psframe.collectives.base import BaseCollective, cut
from psframe.nn.base import LayerHook, Pass
from psframe.nn.network import Network, Observer
from psframe.record.clock import CLOCK
from psframe.record.traffic import Traffic
from psframe.sync.base import Mode
from psframe.sync.sampler import Sampler
from psframe.train.compute.meeting import Workers
from psframe.train.data.batches import Batches


class Work:
    """Computation of a worker's samples of a step as one batch.

    Parameters
    ----------
    others : Workers, optional
        The workers whose samples meet in some layers.

    Attributes
    ----------
    several : bool
        True if a worker may compute several batches per step: gradients are final after the last one only.
    n_losses : int
        Number of loss sums per step.
    reports_loss : bool
        True if this rank reports the losses of its samples: with stages or shards, the last stage's first shard only.
    """

    several, n_losses, reports_loss = False, 1, True

    def __init__(self, sampler: Sampler, network: Network, batches: Batches, others: Workers | None = None):
        self.sampler, self.network, self.batches, self.others = sampler, network, batches, others

    def gradients(
        self, mine: np.ndarray, n_samples: int, epoch: int, losses: np.ndarray, hook: LayerHook | None = None
    ) -> float:
        """Write the gradients of the summed loss into the arena; return the seconds of loading.

        Parameters
        ----------
        mine : ndarray of int64
            This worker's samples, of the step's ``n_samples``.
        losses : ndarray of float64, shape (n_losses,)
            Sums of losses, to which this call adds.
        hook : LayerHook, optional
        """
        began = CLOCK.now()
        x, targets = self.batches.load("train", mine, epoch), self.batches.targets_of(mine, epoch)
        loading_s = CLOCK.now() - began
        loss, _ = self.network.gradients(x, targets, Pass(True, self.sampler.seed, epoch, mine), hook)
        losses[0] += loss
        return loading_s

    def evaluate(self, n_test: int, n_ranks: int, rank: int, also: Observer | None = None) -> np.ndarray:
        """Return the sums of losses and hits, (n, 2), over a rank's share of the test set; n as in :meth:`tested`.

        ``also`` is called with the logits and labels of each batch, on the rank that has its loss.
        """
        share, n_sums = self.tested(n_test, n_ranks, rank)
        sums, batch_size = np.zeros((n_sums, 2)), self.sampler.max_batch
        for lo in range(share.start, share.stop, batch_size):
            samples = np.arange(lo, min(lo + batch_size, share.stop))
            x, labels = self.batches.load("test", samples), self.batches.labels_of("test", samples)
            sums[lo // batch_size % n_sums] += self.network.evaluate(x, labels, also)
        return sums

    def warm(self) -> None:
        """Compute one sample, so that every kernel is compiled."""
        sample = np.zeros(1, np.int64)
        x = self.batches.load("train", sample)
        self.network.gradients(x, self.batches.targets_of(sample, 0), Pass(True, 0, 0, sample))
        self.network.evaluate(x, self.batches.labels_of("test", sample))

    @property
    def ranks_meet(self) -> bool:
        """True if what a rank computes enters what others compute in the same step, before the exchange."""
        return self.network.meets == "workers"

    @property
    def networks(self) -> list[Network]:
        """Networks that samples pass through, in order."""
        return [self.network]

    def begin(self) -> None:
        """Begin steps that all workers take together: reset the counts."""
        for traffic in self.traffics():
            traffic.clear()
        if self.others:
            self.others.are_in_step, self.others.waited_s = True, 0.0

    @property
    def waited_s(self) -> float:
        """Seconds of waiting for other ranks."""
        return self.others.waited_s if self.others else 0.0

    def traffics(self) -> Sequence[Traffic]:
        """Return the counts of bytes moved between ranks."""
        return [self.others.traffic] if self.others else []

    def tested(self, n_test: int, n_ranks: int, rank: int) -> tuple[slice, int]:
        """Return a rank's share of the test set, and the number of sums over the set."""
        return cut(n_test, n_ranks, rank), 1


def layer_hook(mode: Mode, collective: BaseCollective, work: Work) -> LayerHook | None:
    """Return what backward calls on its way: the collective, to send gradients, or the mode, to serve other ranks."""
    net, overlap = work.network, collective.overlap
    if mode.traits.overlaps and not work.several and (layers := overlap.hook_layers(net.begins)):
        return LayerHook(layers, overlap.grads_ready)
    if mode.traits.server is None and (hook := mode.progress):
        return LayerHook(range(len(net.layers)), lambda segment: hook())
    return None
