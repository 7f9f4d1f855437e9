"""The contract of a collective.

Conventions
-----------
Gradients are **sums** over a worker's samples; the mean is over the samples of all workers, so that a short or empty
batch weighs what it holds. Vectors are float32, of the arena's size S. Workers are numbered in rank order, and the
canonical sum is a left fold over that number (``psframe._elementwise.Mean``).
"""

from collections.abc import Iterable
from typing import Protocol

import numpy as np

from psframe.cluster import Team
from psframe.memory.allocator import Allocator

Segments = Iterable[tuple[slice, np.ndarray]]  #: (where in the vector, the mean gradient there)


class Collective(Protocol):
    """Moves parameters and gradients between the ranks of a team.

    Made as ``make(team, size, allocator, reproducible, **yaml_keys)`` on every rank. Buffers that outlive a call come
    from ``allocator`` under the role ``exchange`` and are made before the first step.

    Postcondition (but for ``null``): when a step has been taken all workers hold the same parameters, and every
    worker's gradient was applied once. With ``reproducible`` other than ``none`` the mean is the canonical one.

    Attributes
    ----------
    bytes_moved : int
        Bytes that this rank has received since the owner last set it to 0; what MPI does inside Allreduce is counted as
        the least it can be, 2 (n - 1) / n of the vector a rank (Patarasuk and Yuan 2009).
    """

    bytes_moved: int

    def __init__(self, team: Team, size: int, allocator: Allocator, reproducible: str): ...

    def broadcast(self, params: np.ndarray) -> None:
        """Make every rank's ``params`` (S,) those of rank 0. All ranks must call."""

    def gather_mean(self, grads: np.ndarray, n_samples: int) -> Segments:
        """Yield each segment this rank must update, with its mean gradient; on other ranks nothing. All must call.

        ``grads`` (S,) is this rank's sum (not read on a dedicated server, and free to be overwritten everywhere);
        ``n_samples`` counts the samples of this step over all workers.
        """

    def allreduce_mean(self, grads: np.ndarray, n_samples: int) -> Segments:
        """Yield every segment with its mean gradient, on every worker. All workers must call."""


def cut(size: int, parts: int, part: int) -> slice:
    """Return the ``part``-th of ``parts`` nearly equal consecutive pieces of ``range(size)``."""
    return slice(size * part // parts, size * (part + 1) // parts)
