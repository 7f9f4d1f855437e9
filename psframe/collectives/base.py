"""Contract of a collective: :class:`Collective` for a user's own, :class:`BaseCollective` for the built-in ones.

Gradients are **sums** over a worker's samples. The mean is over the samples of all workers, so that a short or empty
batch has the weight of its samples. Vectors are float32, of the arena's size S. Workers are numbered in rank order. The
canonical sum is a left fold in that order (``psframe.compiled.elementwise.Mean``), or with ``reproducible:
any_workers`` the tree of ``psframe.collectives.order``.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from psframe import compiled
from psframe.cluster.deadline import Request
from psframe.cluster.roles import Team
from psframe.collectives.order import merges, widths
from psframe.collectives.server_vectors import server_arena
from psframe.collectives.traits import Traits
from psframe.memory.allocator import Allocator
from psframe.memory.arena import ONE_COPY, Arena, Keeping, Layout
from psframe.memory.extent import Extent
from psframe.record.flight import WAIT, phase
from psframe.record.trace import UNTRACED, Trace
from psframe.record.traffic import Traffic

#: slices of the vector with their mean gradients: an array, or a ``compiled.elementwise.Mean`` not yet computed
Segments = Iterable[tuple[slice, Any]]


class Collective(Protocol):
    """Interface of a user's own collective, which moves parameters and gradients between the ranks of a team.

    Constructed as ``make(team, size, allocator, reproducible, **yaml_keys)`` on every rank; ``size`` is the vectors'
    length: an int with the places where updates may cut them (:class:`psframe.memory.extent.Extent`). Buffers that
    outlive a call are allocated from ``allocator`` under the role ``exchange``, before the first step.

    Postcondition of a step (except for ``null``): all workers hold the same parameters, and every worker's gradient was
    applied once. With ``reproducible`` other than ``none`` the mean is the canonical one.

    One that places its vectors itself, or sends gradients during backward, derives from :class:`BaseCollective`.

    Attributes
    ----------
    traffic : Traffic
        Bytes moved; without this attribute, nothing is counted.
    """

    traffic: Traffic

    def __init__(self, team: Team, size: int, allocator: Allocator, reproducible: str): ...

    def broadcast(self, params: np.ndarray) -> None:
        """Copy rank 0's ``params`` (S,) to every rank's, in place. All ranks must call."""

    def gather_mean(self, grads: np.ndarray, divisor: int) -> Segments:
        """Yield each segment that this rank must update, with its mean gradient. All ranks must call.

        Ranks that apply no updates get no segments, but must iterate too: every caller must exhaust the iterator, since
        communication may follow the last segment. ``grads`` (S,) is this rank's sum; a dedicated server's is not read,
        and any rank's may be overwritten. A mean is the sum over ``divisor``: the
        samples of this step over all workers, or the workers where a mode averages their parameters.
        """

    def allreduce_mean(self, grads: np.ndarray, divisor: int) -> Segments:
        """Yield the segments that this worker must update, with their mean gradients; otherwise as :meth:`gather_mean`.

        With private parameters every worker gets all segments; with shared ones, only its own. All workers must call.
        """


class Overlap(Protocol):
    """Exchange of gradients during backward.

    Attributes
    ----------
    overlap_s : tuple of float
        Seconds of exchanges in flight, and the part of them that backward hid, since :meth:`clear`.
    """

    @property
    def overlap_s(self) -> tuple[float, float]: ...

    def hook_layers(self, begins: Sequence[int]) -> Collection[int]:
        """Return the layers after which backward must call :meth:`grads_ready`; ``begins`` as in ``Network``."""

    def grads_ready(self, segment: slice) -> None:
        """Start to send the gradients in ``segment`` and behind it, up to the vector's end, which are complete."""

    def clear(self) -> None:
        """Reset ``overlap_s``."""


class NoOverlap:
    """Exchange that follows backward (an :class:`Overlap`)."""

    overlap_s = (0.0, 0.0)

    def hook_layers(self, begins: Sequence[int]) -> Collection[int]:
        """Return no layers."""
        return ()

    def grads_ready(self, segment: slice) -> None:
        """Send nothing yet."""

    def clear(self) -> None:
        """Reset nothing."""


NO_OVERLAP = NoOverlap()


class BaseCollective:
    """Base class of the collectives; by default, the exchange follows backward.

    Members of the family have the arguments as ``_team``, ``_size`` and ``_allocator``, the size as an ``Extent``,
    ``_extent``, and ``_comm``, the team's communicator.

    Attributes
    ----------
    traits : Traits
    traffic : Traffic
        Bytes moved since its ``clear``.
    """

    traits = Traits()

    def __init__(self, team: Team, size: int, allocator: Allocator, reproducible: str):
        self._team, self._comm, self._size, self._allocator = team, team.comm, size, allocator
        self._extent = size if isinstance(size, Extent) else Extent(size)
        self._canonical = reproducible != "none"
        self._merges = merges(widths(team.n_workers)) if reproducible == "any_workers" else None
        self.traffic = Traffic()

    def encoded(self) -> "BaseCollective":
        """Return the collective to use in place of this one: itself, or one that sends gradients through a codec."""
        return self

    def arena(self, layout: Layout, n_state: int, keeping: Keeping = ONE_COPY, trace: Trace = UNTRACED) -> Arena:
        """Return the arena of this rank; by default private vectors, with state on ranks that apply updates.

        ``trace`` receives the exchanges that overlap each other.
        """
        applies, servers = self._team.applies_updates, self._team.servers
        bfloat16 = keeping.bfloat16 and (not servers or (self.traits.broadcasts_any_size and len(servers) == 1))
        keeping = replace(keeping, bfloat16=bfloat16)
        if keeping.outlives_server and len(servers) == 1:
            return server_arena(self._team, layout, n_state, self._allocator, keeping)
        keeping = replace(keeping, copies=keeping.copies if applies else 1)
        return Arena(layout, n_state if applies else 0, self._allocator, keeping=keeping)

    def _wait(self, request: Request) -> None:
        """Wait for a pending request; NodeLost if other nodes do not arrive within ``sync.deadline_s``."""
        if self._team.cluster and self._far:
            self._team.cluster.patience.wait(request)
        else:
            with phase(WAIT):
                request.Wait()

    @property
    def _far(self) -> bool:
        """True if other nodes take part: MPI's blocking calls have no timeout, and would wait for lost ones forever."""
        return self._team.cluster is not None and self._team.cluster.n_nodes > 1

    def mean_of(self, rows: Sequence[np.ndarray]) -> Any:
        """Return the canonical mean over the workers' rows, not yet computed."""
        return compiled.elementwise.Mean(rows, self._merges)

    @property
    def overlap(self) -> Overlap:
        """Exchange during backward, if the collective supports that."""
        return NO_OVERLAP

    def broadcast(self, params: np.ndarray) -> None:
        raise NotImplementedError

    def gather_mean(self, grads: np.ndarray, divisor: int) -> Segments:
        raise NotImplementedError

    def allreduce_mean(self, grads: np.ndarray, divisor: int) -> Segments:
        raise NotImplementedError

    def nonfinite_workers(self, grads: np.ndarray) -> list[int]:
        """Return the workers whose gradients of the last exchange this rank knows to be non-finite.

        ``grads`` are this rank's; the default requires that the exchange has not overwritten them.
        """
        worker = self._team.worker
        return [worker] if worker is not None and not compiled.elementwise.is_finite(grads) else []

    def forget(self) -> None:
        """Discard state left by the last gradients, which were dropped, so that none enters the next ones."""

    def warm(self) -> None:
        """Compile the Numba functions of this collective."""


class UserCollective(BaseCollective):
    """Adapter of a user's own collective, which has only the three methods of :class:`Collective`."""

    def __init__(self, inner: Any, team: Team, size: int, allocator: Allocator, reproducible: str):
        super().__init__(team, size, allocator, reproducible)
        self.traffic = getattr(inner, "traffic", self.traffic)
        self.inner = inner

    def broadcast(self, params: np.ndarray) -> None:
        self.inner.broadcast(params)

    def gather_mean(self, grads: np.ndarray, divisor: int) -> Segments:
        return self.inner.gather_mean(grads, divisor)

    def allreduce_mean(self, grads: np.ndarray, divisor: int) -> Segments:
        return self.inner.allreduce_mean(grads, divisor)


def cut(size: int, parts: int, part: int) -> slice:
    """Return the ``part``-th of ``parts`` nearly equal consecutive pieces of ``range(size)``."""
    return slice(size * part // parts, size * (part + 1) // parts)
