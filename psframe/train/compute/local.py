"""What a rank computes: a worker's gradients of a step, and its share of the test set."""

from collections.abc import Callable, Collection, Sequence
from time import perf_counter

import numpy as np

from psframe.collectives.base import Base, cut
from psframe.nn.base import Pass
from psframe.nn.network import Network
from psframe.record.traffic import Traffic
from psframe.sync.base import Mode
from psframe.sync.sampler import Sampler
from psframe.train.data.batches import Batches


class Work:
    """Computes all samples that a worker has of a step as one batch.

    Attributes
    ----------
    several : bool
        Whether a worker may compute several batches, so that no gradient is done before the last.
    n_losses : int
        Sums of losses that a step has.
    tells : bool
        Whether this rank's losses are those of its samples: of a pipeline's stages only the last one knows them.
    """

    several, n_losses, tells = False, 1, True

    def __init__(self, sampler: Sampler, network: Network, batches: Batches):
        self.sampler, self.network, self.batches = sampler, network, batches

    def gradients(
        self,
        mine: np.ndarray,
        n_samples: int,
        epoch: int,
        losses: np.ndarray,
        boundaries: Collection[int] = (),
        leave: Callable[[slice], None] | None = None,
    ) -> float:
        """Write the gradients of the summed loss into the arena; return the seconds that loading took.

        Parameters
        ----------
        mine : ndarray of int64
            This worker's samples, of ``n_samples`` that the step has.
        losses : ndarray of float64, shape (n_losses,)
            To which the losses are added.
        boundaries, leave
            As in :meth:`Network.gradients`.
        """
        began = perf_counter()
        x, labels = self.batches.load("train", mine, epoch)
        loading_s = perf_counter() - began
        loss, _ = self.network.gradients(x, labels, Pass(True, self.sampler.seed, epoch, mine), boundaries, leave)
        losses[0] += loss
        return loading_s

    def evaluate(self, n_test: int, n_ranks: int, rank: int) -> np.ndarray:
        """Return the losses and the hits of a rank's share of the test set, (n, 2): sums, of which the set has n."""
        mine, n = self.tested(n_test, n_ranks, rank)
        found, batch = np.zeros((n, 2)), self.sampler.max_batch
        for lo in range(mine.start, mine.stop, batch):
            samples = np.arange(lo, min(lo + batch, mine.stop))
            found[lo // batch % n] += self.network.evaluate(*self.batches.load("test", samples))
        return found

    def warm(self) -> None:
        """Compute a sample by itself, so that all is compiled."""
        sample = np.zeros(1, np.int64)
        x, labels = self.batches.load("train", sample)
        self.network.gradients(x, labels, Pass(True, 0, 0, sample))
        self.network.evaluate(x, labels)

    @property
    def parts(self) -> list[Network]:
        """The networks that it passes samples through, one after the other."""
        return [self.network]

    def clear(self) -> None:
        """Begin to count anew."""
        for traffic in self.traffics():
            traffic.clear()

    @property
    def waited_s(self) -> float:
        """Seconds in which it waited for other ranks."""
        return 0.0

    def traffics(self) -> Sequence[Traffic]:
        """Return the counts of what it moved between ranks."""
        return []

    def tested(self, n_test: int, n_ranks: int, rank: int) -> tuple[slice, int]:
        """Return a rank's share of the test set, and how many sums the set has."""
        return cut(n_test, n_ranks, rank), 1


def departures(mode: Mode, collective: Base, work: Work) -> tuple[Collection[int], Callable[[slice], None] | None]:
    """Return the layers at which backward pauses, and what it calls there."""
    net, overlap = work.network, collective.overlap
    if overlap and mode.traits.overlaps and not work.several and (layers := overlap.hook_layers(net.begins)):
        return layers, overlap.grads_ready
    if hook := mode.layer_hook:
        return range(len(net.layers)), lambda segment: hook()
    return (), None
