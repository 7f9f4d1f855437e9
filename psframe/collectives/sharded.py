"""``buffer`` with several servers (:class:`Sharded`), each of which updates a share of the vector (Li et al. 2014).

A single server's link carries every worker's gradients; with k servers on k nodes, each link carries 1 / k of them.
Every bucket is cut into k shares (equal ones, if the optimizer allows a cut anywhere), so that all links are busy while
backward computes the next bucket.
"""

from typing import Any, cast

import numpy as np

from psframe.cluster.roles import Team
from psframe.collectives.bucket_exchanges import BucketExchange, Context, Division, Reduced, Scattered
from psframe.collectives.buffer import Buffer
from psframe.memory.allocator import Allocator

MAX_GATHERED = 4  # vectors per server; above it MPI's reductions, which send fewer bytes over a link, pay off
STATE_TAG = 1  # of messages with optimizer state


class Sharded(Buffer):
    """Ialltoallv to the servers with a canonical sum there, or Ireduce to each; then Allgatherv.

    Arguments as in :class:`Buffer`, except that ``gather: auto`` reduces only if allowed and if a server would receive
    more than MAX_GATHERED vectors; gradients are not compressed.
    """

    def __init__(self, team: Team, size: int, allocator: Allocator, reproducible: str, **keys: Any):
        if keys.get("gather") == "auto" and team.n_workers <= MAX_GATHERED * len(team.servers):
            keys["gather"] = "gather"
        super().__init__(team, size, allocator, reproducible, **keys)

    def _exchange_of(self, context: Context) -> BucketExchange:
        return Reduced(context) if self._reduces else Scattered(context)

    @property
    def _shares(self) -> list[Division]:
        return cast(Scattered, self._exchange).shares

    def publish(self, params: np.ndarray) -> None:
        """Copy the servers' updated shares to every rank's ``params`` (S,), in place. All ranks must call."""
        for share in self._shares:
            self._allgather(params[share.bucket], share.counts, share.starts)

    def gather_state(self, rows: np.ndarray) -> None:
        """Send the other servers' shares of the optimizer state (n_state, S) to rank 0. The servers must call."""
        for server in self._team.servers[1:]:
            for segment in [share.segments[server] for share in self._shares]:
                for row in rows:
                    if self._comm.rank == 0:
                        self._wait(self._comm.Irecv(row[segment], server, STATE_TAG))
                    elif self._comm.rank == server:
                        self._wait(self._comm.Isend(row[segment], 0, STATE_TAG))

    def scatter_state(self, rows: np.ndarray) -> None:
        """Send rank 0's optimizer state (n_state, S) to the other servers. The servers must call."""
        for server in self._team.servers[1:]:
            for row in rows:
                if self._comm.rank == 0:
                    self._wait(self._comm.Isend(row, server, STATE_TAG))
                elif self._comm.rank == server:
                    self._wait(self._comm.Irecv(row, 0, STATE_TAG))
