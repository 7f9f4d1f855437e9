"""Contract of a mailbox (:class:`Mailbox`), in which workers post gradients to rank 0, and wait for its answers."""

from collections.abc import Sequence
from typing import Any

import numpy as np

#: fields of the note of a post: number of samples, learning rate, the worker's step, clock of the parameters that the
#: gradient was computed from, and 1 if the worker posts no more in this epoch, else 0
SAMPLES, RATE, STEP, PULLED, LAST = range(5)
HEADER = 5


class Mailbox:
    """Base class of the mailboxes: one post per worker at a time, in memory of rank 0.

    Attributes
    ----------
    inbox : ndarray of float32, shape (n_workers, rows, S)
        The last post of each worker; on rank 0.
    headers : ndarray of float64, shape (n_workers, HEADER)
        The notes of these posts.
    """

    inbox: Any
    headers: np.ndarray

    def slot(self) -> np.ndarray | None:
        """Return the row of ``inbox`` (S,) for the first vector of this worker's posts; None if not in its memory.

        A vector computed there is posted without a copy; it may be overwritten once :meth:`wait_ack` has returned.
        """
        return None

    def post(self, vectors: Sequence[np.ndarray], *note: float) -> None:
        """Send vectors (S,) and a note to rank 0, once it has granted this worker's previous post."""
        self.wait_ack()
        self.deliver(vectors)
        self.announce(note)

    def deliver(self, vectors: Sequence[np.ndarray]) -> None:
        """Write vectors (S,) to this worker's place in rank 0's memory, unless they lie there.

        Those that do not may then be overwritten.
        """
        raise NotImplementedError

    def announce(self, note: Sequence[float]) -> None:
        """Tell rank 0 that a post is there, with its note."""
        raise NotImplementedError

    def wait_ack(self) -> int:
        """Wait until rank 0 has granted this worker's last post; return the ``word`` of that :meth:`ack`."""
        raise NotImplementedError

    def collect(self) -> int:
        """Wait for a post, and return its worker; the post is in ``inbox`` and ``headers``. Rank 0 calls."""
        raise NotImplementedError

    def ack(self, worker: int, word: int = 0) -> None:
        """Release a worker from its last post, which it may then overwrite, with a ``word`` for it. Rank 0 calls."""
        raise NotImplementedError
