"""Preparation of a benchmark's ranks before it measures (:func:`settle`)."""

from typing import Literal

from psframe.cluster import affinity
from psframe.cluster.cluster import Cluster
from psframe.memory.topology import Topology

DEADLINE_S = 600.0  # for a missing rank


def settle(cluster: Cluster, topology: Topology, wait: Literal["auto", "spin", "block"] = "auto") -> tuple[int, ...]:
    """Bind the ranks as training does by default, set how they wait; return this rank's CPUs. All ranks must call."""
    cpus, _ = affinity.pin(cluster, topology, "numa")
    cluster.rendezvous.configure(wait, DEADLINE_S, affinity.n_cores(cluster, topology))
    return cpus
