"""Exchange between workers within layers in which samples meet those of all workers (:class:`Workers`)."""

import numpy as np

from psframe.cluster.cluster import Cluster
from psframe.cluster.heartbeat import Pulse
from psframe.record.clock import CLOCK
from psframe.record.traffic import Traffic


class Workers:
    """The workers, which exchange a few rows in each such layer, and wait for each other there.

    Parameters
    ----------
    cluster : Cluster
        Of the workers alone, and for nothing else: gradients may be on their way when workers meet.
    pulse : Pulse
        Shows the job's ranks that this one waits for others.

    Attributes
    ----------
    are_in_step : bool
        False while workers compute each for itself, as they do when layers are compiled: then nothing is exchanged.
    """

    def __init__(self, cluster: Cluster, pulse: Pulse):
        self.cluster, self.pulse, self.are_in_step = cluster, pulse, False
        self.traffic, self.waited_s = Traffic(), 0.0

    def gather(self, rows: np.ndarray) -> np.ndarray:
        """Return the rows (m, k), float64, of all workers in their order. All must call, and wait for each other.

        Raises PeerLost if a worker has died, or has missed the deadline.
        """
        if not self.are_in_step:
            return rows
        began = CLOCK.now()
        with self.pulse.arrived():
            # in writable memory, for which layers are compiled
            everyones = bytearray().join(self.cluster.allgather_in_time(rows.tobytes()))
        self.waited_s += CLOCK.now() - began
        self.traffic.read += len(everyones)
        self.traffic.written += rows.nbytes
        if self.cluster.n_nodes > 1 and self.cluster.node_rank == 0:
            self.traffic.send(rows.nbytes * self.cluster.sizes[self.cluster.node])
            self.traffic.receive(len(everyones))
        return np.frombuffer(everyones).reshape(-1, rows.shape[1])
