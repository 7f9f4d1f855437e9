"""Division of a bucket of gradients among the ranks that sum or update it (:class:`Division`)."""

from collections.abc import Sequence

import numpy as np

from psframe.cluster.roles import Team
from psframe.collectives.base import cut
from psframe.memory.extent import Extent

ANYWHERE = Extent(0)  # of no matter what length


class Division:
    """Division of a bucket among its owners, the ranks that sum it.

    Attributes
    ----------
    bucket : slice
    segments : dict of int to slice
        Slice of the vector that each owner sums, by rank.
    own : slice
        That of this rank; empty if it sums nothing.
    counts, starts : list of int
        Length of each rank's slice, and its offset in the bucket.
    rows : ndarray of float32, shape (n_workers, length of ``own``)
        Received gradients, by worker; no rows if MPI sums, or if this rank sums nothing.
    sent, received, offsets : list of int
        Counts of numbers to and from each rank, and offsets of the latter in ``rows``.
    """

    def __init__(
        self,
        bucket: slice,
        owners: Sequence[int],
        team: Team,
        memory: np.ndarray,
        n_rows: int,
        extent: Extent = ANYWHERE,
    ):
        rank, ranks = team.comm.rank, range(team.comm.size)
        parts = {owner: owned(bucket, extent, len(owners), number) for number, owner in enumerate(owners)}
        self.bucket = bucket
        self.segments = {r: slice(bucket.start + part.start, bucket.start + part.stop) for r, part in parts.items()}
        self.own = self.segments.get(rank, slice(bucket.start, bucket.start))
        by_rank = [parts.get(other, slice(0, 0)) for other in ranks]
        self.counts, self.starts = [part.stop - part.start for part in by_rank], [part.start for part in by_rank]
        n_own = self.own.stop - self.own.start
        self.rows = memory[: n_rows * n_own].reshape(n_rows, n_own)
        self.sent = self.counts if team.worker is not None else [0 for _ in ranks]
        self.received = [n_own if n_rows and other in team.worker_of_rank else 0 for other in ranks]
        self.offsets = [team.worker_of_rank[other] * n_own if n else 0 for other, n in enumerate(self.received)]


def owned(bucket: slice, extent: Extent, n_owners: int, number: int) -> slice:
    """Return an owner's part of a bucket, counted from its beginning: an equal part, as far as it may be cut anywhere.

    Where it may not, an owner has an equal part of the whole vector, and here what lies in this bucket: few buckets
    have places to cut in the middle.
    """
    if extent.places is None:
        return cut(bucket.stop - bucket.start, n_owners, number)
    part = extent.cut(n_owners, number)
    start, stop = (min(max(end, bucket.start), bucket.stop) - bucket.start for end in (part.start, part.stop))
    return slice(start, stop)
