"""The contract of a collective.

Conventions ----------- Gradients are **sums** over a worker's samples; the mean is over the samples of all workers, so
that a short or empty batch weighs what it holds. Vectors are float32, of the arena's size S. Workers are numbered in
rank order, and the canonical sum is a left fold over that number (``psframe.compiled.elementwise.Mean``); with
``reproducible: any_workers`` it is the tree of ``psframe.collectives.order``.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from psframe import compiled
from psframe.cluster.deadline import Request
from psframe.cluster.roles import Team
from psframe.collectives.carriers import Carrier
from psframe.collectives.order import merges, widths
from psframe.collectives.traits import Traits
from psframe.memory.allocator import Allocator
from psframe.memory.arena import ONE_COPY, Arena, Keeping, Layout
from psframe.record.trace import UNTRACED, Trace
from psframe.record.traffic import Traffic

#: where in the vector, and the mean gradient there: an array, or a ``compiled.elementwise.Mean``, yet to be taken
Segments = Iterable[tuple[slice, Any]]


class Collective(Protocol):
    """Moves parameters and gradients between the ranks of a team.

    Made as ``make(team, size, allocator, reproducible, **yaml_keys)`` on every rank. Buffers that outlive a call come
    from ``allocator`` under the role ``exchange`` and are made before the first step.

    Postcondition (but for ``null``): when a step has been taken all workers hold the same parameters, and every
    worker's gradient was applied once. With ``reproducible`` other than ``none`` the mean is the canonical one.

    One that has more to say (where its vectors lie, that gradients may leave early) derives from :class:`Base`.

    Attributes
    ----------
    traffic : Traffic
        What it has moved; a collective without one is taken to count nothing.
    """

    traffic: Traffic

    def __init__(self, team: Team, size: int, allocator: Allocator, reproducible: str): ...

    def broadcast(self, params: np.ndarray) -> None:
        """Make every rank's ``params`` (S,) those of rank 0. All ranks must call."""

    def gather_mean(self, grads: np.ndarray, n_samples: int) -> Segments:
        """Yield each segment this rank must update, with its mean gradient; on other ranks nothing. All must call.

        ``grads`` (S,) is this rank's sum (not read on a dedicated server, and free to be overwritten everywhere);
        ``n_samples`` counts the samples of this step over all workers. What follows the last segment happens when the
        caller asks for another one: it takes all.
        """

    def allreduce_mean(self, grads: np.ndarray, n_samples: int) -> Segments:
        """Yield the segments that this worker must update, with their mean gradients; otherwise as above.

        Unless the ranks share their parameters, those are all segments on every worker. All workers must call.
        """


class Overlap(Protocol):
    """Exchange of gradients while backward goes on.

    Attributes
    ----------
    overlap_s : tuple of float
        Seconds that exchanges were under way, and those of them that backward hid, since the owner's last ``clear``.
    """

    @property
    def overlap_s(self) -> tuple[float, float]: ...

    def hook_layers(self, begins: Sequence[int]) -> Collection[int]:
        """Return the layers after which backward is to call :meth:`grads_ready`; ``begins`` as of ``Network``."""

    def grads_ready(self, segment: slice) -> None:
        """Send what can be sent: the gradients in ``segment``, and all behind it, are complete."""


class Base:
    """Base of the collectives; here the behaviour of one that exchanges after backward.

    Attributes
    ----------
    traits : Traits
    compression : str or mapping
        The codec of gradients that are encoded by :class:`psframe.collectives.compression.Compressed`.
    carrier : Carrier or None
        Moves encoded gradients; None if that class cannot wrap this collective.
    overlap : Overlap or None
    """

    traits = Traits()
    compression: str | Mapping[str, Any] = "none"
    carrier: Carrier | None = None
    overlap: Overlap | None = None

    def __init__(self, team: Team, size: int, allocator: Allocator, reproducible: str):
        self.team, self.comm, self.size, self.allocator = team, team.comm, size, allocator
        self.canonical = reproducible != "none"
        self.merges = merges(widths(team.n_workers)) if reproducible == "any_workers" else None
        self.traffic = Traffic()

    def arena(self, layout: Layout, n_state: int, keeping: Keeping = ONE_COPY, trace: Trace = UNTRACED) -> Arena:
        """Return the vectors of this rank: here, private ones, with state for whoever applies updates.

        Exchanges that are under way while others are, too, are traced in ``trace``.
        """
        applies = self.team.applies
        n_state, copies = (n_state, keeping.copies) if applies else (0, 1)
        return Arena(layout, n_state, self.allocator, copies=copies, guarded=keeping.guarded)

    def wait(self, request: Request) -> None:
        """Wait for what is under way; NodeLost where other nodes do not come for ``sync.deadline_s``."""
        if self.team.cluster and self.far:
            self.team.cluster.patience.wait(request)
        else:
            request.Wait()

    @property
    def far(self) -> bool:
        """True if other nodes take part, for which MPI's blocking calls would wait for ever."""
        return self.team.cluster is not None and self.team.cluster.n_nodes > 1

    def mean_of(self, rows: Sequence[np.ndarray]) -> Any:
        """Return the canonical mean over the rows of all workers, yet to be taken."""
        return compiled.elementwise.Mean(rows, self.merges)

    def clear(self) -> None:
        """Begin to count anew."""
        self.traffic.clear()

    def broadcast(self, params: np.ndarray) -> None:
        raise NotImplementedError

    def gather_mean(self, grads: np.ndarray, n_samples: int) -> Segments:
        raise NotImplementedError

    def allreduce_mean(self, grads: np.ndarray, n_samples: int) -> Segments:
        raise NotImplementedError

    def nonfinite_workers(self, grads: np.ndarray) -> list[int]:
        """Return whose gradients of the last exchange this rank knows not to have been finite.

        ``grads`` are this rank's; here nobody has overwritten them.
        """
        worker = self.team.worker
        return [worker] if worker is not None and not compiled.elementwise.is_finite(grads) else []

    def forget(self) -> None:
        """Let nothing of the last gradients, which were not used, go into the next ones."""

    def warm(self) -> None:
        """Compile what Numba has to compile."""


class Adapted(Base):
    """A user's own collective, which has the three methods alone."""

    def __init__(self, inner: Any, team: Team, size: int, allocator: Allocator, reproducible: str):
        super().__init__(team, size, allocator, reproducible)
        self.traffic = getattr(inner, "traffic", self.traffic)
        self.inner = inner

    def broadcast(self, params: np.ndarray) -> None:
        self.inner.broadcast(params)

    def gather_mean(self, grads: np.ndarray, n_samples: int) -> Segments:
        return self.inner.gather_mean(grads, n_samples)

    def allreduce_mean(self, grads: np.ndarray, n_samples: int) -> Segments:
        return self.inner.allreduce_mean(grads, n_samples)


def cut(size: int, parts: int, part: int) -> slice:
    """Return the ``part``-th of ``parts`` nearly equal consecutive pieces of ``range(size)``."""
    return slice(size * part // parts, size * (part + 1) // parts)
