"""``buffer`` with several servers (:class:`Sharded`), each of which updates a share of the vector (Li et al. 2014).

A single server's link carries every worker's gradients; with k servers on k nodes, each link carries 1 / k of them.
Every bucket is cut into k equal shares, so that all links are busy while backward computes the next bucket.
"""

from typing import Any

import numpy as np
from mpi4py import MPI

from psframe.cluster.roles import Team
from psframe.collectives.base import Segments, cut
from psframe.collectives.buckets import MAX_BUCKETS, Departures
from psframe.collectives.buffer import Buffer
from psframe.memory.allocator import Allocator

GATHERED = 4  # vectors per server; MPI's reductions send fewer bytes over a link, but pay off only above it
STATE = 1  # tag of optimizer state


class Share:
    """Division of a bucket among the servers.

    Attributes
    ----------
    segments : dict of int to slice
        Slice of the vector that each server sums and updates, by rank.
    own : slice
        That of this rank; empty if it is no server.
    counts, starts : list of int
        Count of numbers to each rank, and their offset in the bucket.
    rows : ndarray of float32, shape (n_workers, length of ``own``)
        Received gradients, by worker; no rows if MPI sums, or if this rank is no server.
    """

    def __init__(self, bucket: slice, team: Team, memory: np.ndarray, n_rows: int):
        n, rank, k = bucket.stop - bucket.start, team.comm.rank, len(team.servers)
        parts = {server: cut(n, k, number) for number, server in enumerate(team.servers)}
        self.bucket = bucket
        self.segments = {r: slice(bucket.start + part.start, bucket.start + part.stop) for r, part in parts.items()}
        self.own = self.segments.get(rank, slice(bucket.start, bucket.start))
        by_rank = [parts.get(other, slice(0, 0)) for other in range(team.comm.size)]
        self.counts, self.starts = [part.stop - part.start for part in by_rank], [part.start for part in by_rank]
        n_own = self.own.stop - self.own.start
        self.rows = memory[: n_rows * n_own].reshape(n_rows, n_own)
        self.sent = self.counts if team.worker is not None else [0] * team.comm.size
        self.received = [n_own if n_rows and other in team.worker_of_rank else 0 for other in range(team.comm.size)]
        self.places = [team.worker_of_rank[other] * n_own if n else 0 for other, n in enumerate(self.received)]


class RequestGroup:
    """Several MPI requests as one."""

    def __init__(self, requests: list[MPI.Request]):
        self.requests = requests

    def Test(self) -> bool:
        return bool(MPI.Request.Testall(self.requests))

    def Wait(self) -> None:
        MPI.Request.Waitall(self.requests)


class Sharded(Buffer):
    """Ialltoallv to the servers with a canonical sum there, or Ireduce to each; then Iallgatherv.

    Arguments as in :class:`Buffer`, except that ``gather: auto`` reduces only if allowed and if a server would receive
    more than GATHERED vectors; gradients are not compressed.
    """

    def __init__(self, team: Team, size: int, allocator: Allocator, reproducible: str, **keys: Any):
        if keys.get("gather") == "auto" and team.n_workers <= GATHERED * len(team.servers):
            keys["gather"] = "gather"
        super().__init__(team, size, allocator, reproducible, **keys)

    def _receive(self) -> None:
        self.n_rows = self._team.n_workers if self._team.applies_updates and not self.reduces else 0
        # rounding may make the share of each bucket one number longer than its part of the vector
        longest = -(-self._size // len(self._team.servers)) + MAX_BUCKETS
        self.received = self._allocator.zeros(self.n_rows * longest, np.float32, "exchange")

    def _plan_buckets(self, buckets: list[slice]) -> None:
        self.departures = Departures(buckets, self._reduce if self.reduces else self._send, self._wait)
        self.source = self.vectors.grads
        self.shares: list[Share] = []
        n_used = 0
        for bucket in buckets:
            share = Share(bucket, self._team, self.received[n_used:], self.n_rows)
            n_used += share.rows.size
            self.shares.append(share)
        rows = [[self.source[share.own]] if self.reduces else list(share.rows) for share in self.shares]
        self.means = [self.mean_of(of_share) if self._team.applies_updates else None for of_share in rows]

    def gather_mean(self, grads: np.ndarray, n_samples: int) -> Segments:
        for number, _ in self._arriving(grads):
            if self._team.applies_updates:
                yield self.shares[number].own, self.means[number].over(n_samples)

    def _send(self, number: int) -> MPI.Request:
        share, part = self.shares[number], self.source[self.departures.buckets[number]]
        rank = self._comm.rank
        self.traffic.send(4 * (sum(share.sent) - share.sent[rank]))
        self.traffic.receive(4 * (sum(share.received) - share.received[rank]))
        return self._comm.Ialltoallv(
            [part, share.sent, share.starts, MPI.FLOAT], [share.rows, share.received, share.places, MPI.FLOAT]
        )

    def _reduce(self, number: int) -> RequestGroup:
        share, requests = self.shares[number], []
        for server, segment in share.segments.items():
            part = self.source[segment]
            if server == self._comm.rank:
                self.traffic.receive((self._comm.size - 1) * part.nbytes)
                requests.append(self._comm.Ireduce(MPI.IN_PLACE, part, root=server))
            else:
                self.traffic.send(part.nbytes)
                requests.append(self._comm.Ireduce(part, None, root=server))
        return RequestGroup(requests)

    def publish(self, params: np.ndarray) -> None:
        """Copy the servers' updated shares to every rank's ``params`` (S,), in place. All ranks must call."""
        for share in self.shares:
            bucket, own_part = params[share.bucket], params[share.own]
            self._wait(self._comm.Iallgatherv(MPI.IN_PLACE, [bucket, share.counts, share.starts, MPI.FLOAT]))
            self.traffic.send((self._comm.size - 1) * own_part.nbytes)
            self.traffic.receive(bucket.nbytes - own_part.nbytes)

    def collect(self, rows: np.ndarray) -> None:
        """Send the other servers' shares of the optimizer state (n_state, S) to rank 0. The servers must call."""
        for server in self._team.servers[1:]:
            for segment in [share.segments[server] for share in self.shares]:
                for row in rows:
                    if self._comm.rank == 0:
                        self._wait(self._comm.Irecv(row[segment], server, STATE))
                    elif self._comm.rank == server:
                        self._wait(self._comm.Isend(row[segment], 0, STATE))

    def hand_out(self, rows: np.ndarray) -> None:
        """Send rank 0's optimizer state (n_state, S) to the other servers. The servers must call."""
        for server in self._team.servers[1:]:
            for row in rows:
                if self._comm.rank == 0:
                    self._wait(self._comm.Isend(row, server, STATE))
                elif self._comm.rank == server:
                    self._wait(self._comm.Irecv(row, 0, STATE))
