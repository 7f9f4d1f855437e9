"""The contract of a sync mode."""

from typing import Protocol

from psframe.arena import Arena
from psframe.collectives.base import Collective
from psframe.optim import Updater


class SyncMode(Protocol):
    """Takes the steps of a run.

    Made as ``make(**yaml_keys)`` to say what rank 0 is, then given its parts by :meth:`open`. Postcondition of a step:
    all workers hold the same parameters, and the mean over all samples of the step was applied once.

    Attributes
    ----------
    server : str or None
        ``dedicated``, ``colocated``, or None; see :class:`psframe.cluster.Team`.
    """

    server: str | None

    def open(self, arena: Arena, collective: Collective, update: Updater) -> None:
        """Take the parts and make every rank's parameters those of rank 0. All ranks must call."""

    def step(self, n_samples: int, lr: float, step: int) -> None:
        """Exchange the gradients in the arena and update. All ranks must call.

        ``n_samples`` counts the samples of this step over all workers, ``step`` counts from 1 over the whole run.
        """
