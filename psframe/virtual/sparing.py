"""Memory of virtual ranks (:class:`Sparing`): what a thousand of them need not have each for itself."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from psframe.memory.tensor_names import role_of
from psframe.sync.server_mode import ServerMode
from psframe.sync.stores.mailbox import Mailbox
from psframe.sync.stores.shared_mailbox import SharedMailbox
from psframe.train.run import Run
from psframe.virtual.before import Before
from psframe.virtual.loans import Loans
from psframe.virtual.pages import Common, Copies, forget, inner


class Sparing:
    """Pages that the ranks of a job share, or have in turn. The same object on all of them.

    - Data are the same on all nodes.
    - Activations are read by nobody behind a computation. Where no other rank runs before its end, all compute in the
      same ones; else they are given back.
    - Gradients of a server's worker are read by nobody once they are posted, and the server's memory of a post by
      nobody once that is released.
    """

    def __init__(self) -> None:
        self._data, self._activations, self.gradients, self.posts = Copies(at_once=True), Common(), Loans(), Loans()
        self.rows: Sequence[Any] = ()  # of the server, where each worker's posts lie

    def begin(self, run: Run) -> None:
        """Spare data, and what a rank's first computation has used, which compiles kernels and is of all at a time."""
        run.work = _Warming(run)  # type: ignore
        for memory in of_roles(run, "data"):
            self._data.copy(memory, memory)

    def share_activations(self, run: Run) -> bool:
        """Let a rank compute in the activations of all, unless it meets others meanwhile; return True if it does."""
        if run.work.ranks_meet or run.config.parallel.is_cut:
            return False
        return all(self._activations.share(k, memory) for k, memory in enumerate(of_roles(run, "activations")))

    def post_in_turn(self, run: Run, mode: ServerMode) -> None:
        """Let a worker have pages for gradients until they are posted, and the server for posts until their release."""
        if run.team.worker is None:
            self.rows = mode.mailbox.inbox
            mode.mailbox = _Releasing(mode.mailbox, self.posts)  # type: ignore
        else:
            mode.mailbox = _Delivering(mode.mailbox, self, run, run.team.worker)  # type: ignore
            run.work = _Borrowing(run, self.gradients)  # type: ignore


class _Warming(Before):
    """A rank's work, which forgets its first computation."""

    def __init__(self, run: Run):
        super().__init__(run.work)
        self._used = of_roles(run, "gradients", "activations")

    def warm(self) -> None:
        self.behind.warm()
        for memory in self._used:
            forget(memory)


class _Borrowing(Before):
    """A worker's work, which borrows pages for its gradients."""

    def __init__(self, run: Run, loans: Loans):
        super().__init__(run.work)
        self._loans, self._own = loans, of_roles(run, "gradients")

    def gradients(self, *given: Any, **named: Any) -> float:
        for memory in self._own:
            self._loans.take(memory)
        loading_s: float = self.behind.gradients(*given, **named)
        return loading_s


class _Delivering(Before):
    """A worker's mailbox: a post gives its gradients' pages back, and borrows some for the server's row of the node."""

    post = Mailbox.post

    def __init__(self, mailbox: Mailbox, sparing: Sparing, run: Run, worker: int):
        super().__init__(mailbox)
        self._sparing, self._worker, self._own = sparing, worker, of_roles(run, "gradients")
        self._is_near = isinstance(mailbox, SharedMailbox)  # else it waits for a link before it writes

    def deliver(self, vectors: Sequence[np.ndarray]) -> None:
        rows = self._sparing.rows
        for row, vector in zip(rows[self._worker] if self._is_near and len(rows) else (), vectors, strict=False):
            if row.ctypes.data != vector.ctypes.data:  # else it was computed there
                self._sparing.posts.take(inner(row))
        self.behind.deliver(vectors)
        for memory in self._own:
            self._sparing.gradients.give(memory)


class _Releasing(Before):
    """The server's mailbox, which gives the pages of a post back once that is released."""

    def __init__(self, mailbox: Mailbox, loans: Loans):
        super().__init__(mailbox)
        self._loans = loans

    def ack(self, worker: int, word: int = 0) -> None:
        for row in self.behind.inbox[worker]:
            self._loans.give(inner(row))
        self.behind.ack(worker, word)


def of_roles(run: Run, *roles: str) -> list[np.ndarray]:
    """Return a rank's memory of these roles."""
    return [memory for place, memory in run.blocks if role_of(place) in roles]
