"""Gradients in buckets, which leave while backward still computes those of the layers before."""

from collections.abc import Callable, Sequence
from time import perf_counter

from mpi4py import MPI

from psframe.record.trace import Trace


def cut_at_layers(begins: Sequence[int], size: int, least: int) -> list[slice]:
    """Cut a vector of ``size`` numbers at the beginnings of layers, from its end, into buckets of at least ``least``.

    Small tensors are fused so; the last bucket, which holds the first layers, may be smaller.
    """
    buckets, end = [], size
    for begin in sorted({0, *begins}, reverse=True):
        if begin < end and (end - begin >= least or begin == 0):
            buckets.append(slice(begin, end))
            end = begin
    return buckets


class Departures:
    """The exchanges of one step, bucket by bucket.

    MPI moves data only inside its own calls, so whoever computes calls :meth:`leave` now and then.

    Parameters
    ----------
    buckets : list of slice
        From the end of the vector to its beginning.
    begin : callable
        ``begin(number)`` starts the exchange of a bucket, as all ranks do in this order, and returns its request.

    Attributes
    ----------
    flight_s, hidden_s : float
        Seconds that exchanges were under way, and those of them during which this rank computed, as far as it has seen.
    """

    def __init__(self, buckets: list[slice], begin: Callable[[int], MPI.Request]):
        self.buckets, self.begin = buckets, begin
        self.requests: list[MPI.Request] = []
        self.left_at = [0.0] * len(buckets)
        self.seen_at = [0.0] * len(buckets)
        self.flight_s = self.hidden_s = 0.0

    def leave(self, first: int) -> None:
        """Let every bucket leave that begins at ``first`` or behind it, and let MPI work on those under way."""
        for number in range(len(self.requests)):
            self._look(number)
        while len(self.requests) < len(self.buckets) and self.buckets[len(self.requests)].start >= first:
            self.left_at[len(self.requests)], self.seen_at[len(self.requests)] = perf_counter(), 0.0
            self.requests.append(self.begin(len(self.requests)))

    def _look(self, number: int) -> None:
        if not self.seen_at[number] and self.requests[number].Test():
            self.seen_at[number] = perf_counter()

    def arrive(self, number: int) -> slice:
        """Wait for a bucket and return it; the last one ends the step."""
        self.requests[number].Wait()
        self.seen_at[number] = self.seen_at[number] or perf_counter()
        return self.buckets[number]

    def end(self, computed_at: float, trace: Trace | None = None) -> None:
        """Account for a step whose backward ended at ``computed_at``, and begin another."""
        if trace and trace.on:
            for number, (left, seen) in enumerate(zip(self.left_at, self.seen_at, strict=True)):
                trace.add("exchange", left, seen, number + 1)
        for left, seen in zip(self.left_at, self.seen_at, strict=True):
            self.flight_s += seen - left
            self.hidden_s += max(0.0, min(seen, computed_at) - left)
        self.requests.clear()

    def clear(self) -> None:
        """Begin to count anew."""
        self.flight_s = self.hidden_s = 0.0
