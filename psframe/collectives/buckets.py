"""Gradients in buckets, which leave while backward still computes those of the layers before."""

from collections.abc import Callable, Sequence
from time import perf_counter

from psframe.cluster.deadline import Request
from psframe.record.trace import Trace

BUCKET_BYTES = 1 << 20
MOST_BUCKETS = 64


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


def least_of(bucket_bytes: int, size: int) -> int:
    """Return of how many numbers a bucket is to be, so that it has so many bytes, and there are not too many."""
    return max(bucket_bytes // 4, -(-size // MOST_BUCKETS))


class Flights:
    """When each bucket of a step has left, and when it was seen to be there.

    Attributes
    ----------
    flight_s, hidden_s : float
        Seconds that exchanges were under way, and those of them during which this rank computed, as far as it has seen.
    """

    def __init__(self, n_buckets: int):
        self.left_at, self.seen_at = [0.0] * n_buckets, [0.0] * n_buckets
        self.n_seen = 0
        self.flight_s = self.hidden_s = 0.0

    def leave(self, number: int) -> None:
        """Note that a bucket leaves now."""
        self.left_at[number] = perf_counter()

    def see(self, n: int) -> None:
        """Note that the first ``n`` buckets are there, if that is new."""
        while self.n_seen < n:
            self.seen_at[self.n_seen] = perf_counter()
            self.n_seen += 1

    def end(self, computed_at: float, trace: Trace) -> None:
        """Account for a step whose backward ended at ``computed_at``, and begin another."""
        for number, (left, seen) in enumerate(zip(self.left_at, self.seen_at, strict=True)):
            if trace.on:
                trace.add("exchange", left, seen, number + 1)
            self.flight_s += seen - left
            self.hidden_s += max(0.0, min(seen, computed_at) - left)
        self.n_seen = 0

    def clear(self) -> None:
        """Begin to count anew."""
        self.flight_s = self.hidden_s = 0.0


class Departures:
    """The exchanges of one step, bucket by bucket, each a request of MPI.

    MPI moves data only inside its own calls, so whoever computes calls :meth:`leave` now and then.

    Parameters
    ----------
    buckets : list of slice
        From the end of the vector to its beginning.
    begin : callable
        ``begin(number)`` starts the exchange of a bucket, as all ranks do in this order, and returns its request.
    wait : callable
        ``wait(request)`` returns when it is done.
    """

    def __init__(self, buckets: list[slice], begin: Callable[[int], Request], wait: Callable[[Request], None]):
        self.buckets, self.begin, self.wait = buckets, begin, wait
        self.requests: list[Request] = []
        self.flights = Flights(len(buckets))

    def leave(self, first: int) -> None:
        """Let every bucket leave that begins at ``first`` or behind it, and let MPI work on those under way."""
        while self.flights.n_seen < len(self.requests) and self.requests[self.flights.n_seen].Test():
            self.flights.see(self.flights.n_seen + 1)
        while len(self.requests) < len(self.buckets) and self.buckets[len(self.requests)].start >= first:
            self.flights.leave(len(self.requests))
            self.requests.append(self.begin(len(self.requests)))

    def arrive(self, number: int) -> slice:
        """Wait for a bucket and return it; the last one ends the step."""
        self.wait(self.requests[number])
        self.flights.see(number + 1)
        return self.buckets[number]

    def end(self, computed_at: float, trace: Trace) -> None:
        """Account for a step whose backward ended at ``computed_at``, and begin another."""
        self.flights.end(computed_at, trace)
        self.requests.clear()

    def clear(self) -> None:
        """Begin to count anew."""
        self.flights.clear()
