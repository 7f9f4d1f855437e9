"""Buckets of gradients, sent while backward computes those of earlier layers (:class:`BucketSends`)."""

from collections.abc import Callable, Sequence

from psframe.cluster.deadline import Request
from psframe.record.clock import CLOCK
from psframe.record.trace import Trace

BUCKET_BYTES = 1 << 20
MAX_BUCKETS = 64


def cut_at_layers(begins: Sequence[int], size: int, least: int) -> list[slice]:
    """Return buckets of at least ``least`` numbers, cut at the beginnings of layers from the end of a vector (size,).

    Small tensors share a bucket. The last bucket, with the first layers, may be smaller.
    """
    buckets, end = [], size
    for begin in sorted({0, *begins}, reverse=True):
        if begin < end and (end - begin >= least or begin == 0):
            buckets.append(slice(begin, end))
            end = begin
    return buckets


def least_of(bucket_bytes: int, size: int) -> int:
    """Return the least length of a bucket of ``bucket_bytes`` of float32, at most MAX_BUCKETS in all."""
    return max(bucket_bytes // 4, -(-size // MAX_BUCKETS))


class SendTimes:
    """Times at which each bucket of a step was sent, and found complete.

    Attributes
    ----------
    flight_s, hidden_s : float
        Seconds of exchanges in flight, and the part of them in which this rank computed, as far as observed.
    """

    def __init__(self, n_buckets: int):
        self.sent_at, self.done_at = [0.0] * n_buckets, [0.0] * n_buckets
        self.n_done = 0
        self.flight_s = self.hidden_s = 0.0

    def sent(self, number: int) -> None:
        """Record that a bucket is sent now."""
        self.sent_at[number] = CLOCK.now()

    def completed(self, n: int) -> None:
        """Record that the first ``n`` buckets are complete, those of them that are not recorded yet."""
        while self.n_done < n:
            self.done_at[self.n_done] = CLOCK.now()
            self.n_done += 1

    def end(self, computed_at: float, trace: Trace) -> None:
        """Add the times of a step whose backward ended at ``computed_at``, and begin the next."""
        for number, (sent, done) in enumerate(zip(self.sent_at, self.done_at, strict=True)):
            if trace.on:
                trace.add("exchange", sent, done, number + 1)
            self.flight_s += max(0.0, done - sent)  # an empty part may be done before it is sent
            self.hidden_s += max(0.0, min(done, computed_at) - sent)
        self.n_done = 0

    def clear(self) -> None:
        """Reset the counts."""
        self.flight_s = self.hidden_s = 0.0


class BucketSends:
    """Exchanges of one step, one MPI request per bucket.

    MPI makes progress only inside its own calls, so a computing rank calls :meth:`start_ready` now and then.

    Parameters
    ----------
    buckets : list of slice
        From the end of the vector to its beginning.
    begin : callable
        ``begin(number)`` starts the exchange of a bucket, in the same order on all ranks, and returns its request.
    wait : callable
        ``wait(request)`` returns once it is complete.
    """

    def __init__(self, buckets: list[slice], begin: Callable[[int], Request], wait: Callable[[Request], None]):
        self.buckets, self.begin, self.wait = buckets, begin, wait
        self.requests: list[Request] = []
        self.times = SendTimes(len(buckets))

    def start_ready(self, first: int) -> None:
        """Start every bucket that begins at ``first`` or behind it, and let MPI make progress on pending ones."""
        while self.times.n_done < len(self.requests) and self.requests[self.times.n_done].Test():
            self.times.completed(self.times.n_done + 1)
        while len(self.requests) < len(self.buckets) and self.buckets[len(self.requests)].start >= first:
            self.times.sent(len(self.requests))
            self.requests.append(self.begin(len(self.requests)))

    def wait_for(self, number: int) -> None:
        """Wait for a bucket."""
        self.wait(self.requests[number])
        self.times.completed(number + 1)

    def end(self, computed_at: float, trace: Trace) -> None:
        """Add the times of a step whose backward ended at ``computed_at``, and begin the next."""
        self.times.end(computed_at, trace)
        self.requests.clear()

    def clear(self) -> None:
        """Reset the counts."""
        self.times.clear()
