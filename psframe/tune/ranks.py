"""Candidates on the ranks of a job (:class:`Candidates`): ``mpirun -n N python -m psframe.tune.ranks CONFIG``.

Rank 0 reads requests, a JSON list a line, from stdin, and prints a JSON object for each. Until the next one no rank
computes or polls. They end with stdin.
"""

import gc
import json
import os
import sys
from collections.abc import Sequence
from time import sleep
from typing import Any

from psframe.cluster import begin

begin.over_ranks()

import numpy as np  # noqa: E402
from mpi4py import MPI  # noqa: E402

from psframe.cluster import affinity  # noqa: E402
from psframe.cluster.cluster import AgreedError, Cluster  # noqa: E402
from psframe.cluster.command import guarded, run  # noqa: E402
from psframe.cluster.communicators import mpi_name  # noqa: E402
from psframe.config import tuned  # noqa: E402
from psframe.errors import UserError  # noqa: E402
from psframe.nn import jit  # noqa: E402
from psframe.train.data.dataset import LoadedData  # noqa: E402
from psframe.train.plan import plan, without_ranks  # noqa: E402
from psframe.tune.stretch import BESIDE, Candidate, bind, train  # noqa: E402

POLL_S = 0.005  # between looks for a message of another node, while this job trains nothing


class Candidates:
    """Candidates of one job, by number. All ranks must call each method.

    Parameters
    ----------
    cluster : Cluster
    path : str
        The config.
    given : sequence of str
        Overrides of all candidates.
    """

    def __init__(self, cluster: Cluster, path: str, given: Sequence[str]):
        self.cluster, self.path, self.given, self.cpus = cluster, path, given, os.sched_getaffinity(0)
        self.held: dict[int, Candidate] = {}

    def hold(self, number: int, overrides: Sequence[str]) -> dict[str, Any]:
        """Build a candidate; its data are those of another one if they lie in the same place."""
        bind(self.cpus)
        made = plan.make(self.cluster, self.path, [*self.given, *overrides, *BESIDE])
        self.held[number] = candidate = Candidate(self.cluster, made, self._data(made))
        sampler = candidate.run.sampler
        return {"whole": sampler.whole, "most_steps": max(1, sampler.n_samples // sampler.whole)}

    def look(self, number: int) -> dict[str, Any]:
        """Return the fields of :class:`psframe.tune.space.Origin`, for a candidate; on rank 0, elsewhere {}."""
        candidate, cluster = self.held[number], self.cluster
        bind(self.cpus)
        topology, run = candidate.plan.places.site.topology, candidate.run
        cores = affinity.n_cores(cluster, topology)
        candidate.resume(cluster)
        return {
            "machine": topology.title,
            "mpi": mpi_name(),
            "n_nodes": cluster.n_nodes,
            "cores": cores,
            "n_numa": sum(bool(node.cpus) for node in topology.nodes),
            "tiers": sorted({node.tier for node in topology.nodes if node.tier and node.allowed}),
            "n_workers": run.team.n_workers,
            "batch_size": run.sampler.batch_size,
            "global_batch": run.sampler.whole,
            "n_train": run.sampler.n_samples,
            "same_each_step": run.sync.traits.same_each_step,
            "own_statistics": run.network.meets == "batch",
            "config": candidate.plan.resolved,
            "set_keys": cluster.run_on_root(lambda: tuned.set_keys(self.path, self.given)),
            "key": cluster.run_on_root(
                lambda: tuned.key(candidate.plan.resolved, tuned.set_keys(self.path, self.given))
            ),
        }

    def workers(self, number: int, *ways: tuple[Sequence[str], int]) -> dict[str, Any]:
        """Return the number of workers of each pair of overrides and ranks; why it cannot be, where it cannot.

        ``number`` is any candidate.
        """
        return {"found": self.cluster.run_on_root(lambda: [self._workers(*way) for way in ways])}

    def _workers(self, overrides: Sequence[str], n_ranks: int) -> int | str:
        try:
            roles = without_ranks.check(self.path, [*self.given, *overrides], n_ranks).roles
        except UserError as error:
            return str(error)
        return roles.n_workers if roles else 1

    def train(self, number: int, n_steps: int) -> dict[str, Any]:
        """Train a stretch of a candidate."""
        candidate = self.held[number]
        candidate.resume(self.cluster)
        return train(candidate.run, n_steps)

    def drop(self, *numbers: int) -> dict[str, Any]:
        """Release candidates."""
        for number in numbers:
            self.held.pop(number).close()
        self.cluster.barrier()
        gc.collect()
        return {}

    def _data(self, made: plan.Plan) -> LoadedData | None:
        place = made.choices["placement.data"]
        return next((c.run.held for c in self.held.values() if c.plan.choices["placement.data"] == place), None)


def serve(cluster: Cluster, argv: Sequence[str]) -> int:
    """Answer the requests until stdin ends. All ranks must call."""
    candidates = Candidates(cluster, argv[0], argv[1:])
    jit.load()
    while True:
        line = _told(cluster, sys.stdin.readline().encode() if cluster.rank == 0 else b"")
        if not line:
            return 0
        what, *given = json.loads(line)
        try:
            reply = getattr(candidates, what)(*given)
        except AgreedError as error:
            reply = {"refused": str(error)}
        if cluster.rank == 0:
            print(json.dumps(reply), flush=True)


def _told(cluster: Cluster, line: bytes) -> bytes:
    """Return rank 0's line on all ranks, which must all call; they sleep until it comes."""
    if cluster.leaders != MPI.COMM_NULL and cluster.n_nodes > 1:
        length = np.array([len(line)])
        _await(cluster.leaders.Ibcast(length))
        data = np.frombuffer(line, np.uint8) if cluster.rank == 0 else np.empty(int(length[0]), np.uint8)
        _await(cluster.leaders.Ibcast(data))
        line = data.tobytes()
    return cluster.link.spread(line)


def _await(request: MPI.Request) -> None:
    """Wait for a message of another node; MPI has no wait that does not spin, and other jobs train meanwhile."""
    while not request.Test():
        sleep(POLL_S)


if __name__ == "__main__":
    sys.exit(guarded(lambda argv: run(lambda cluster: serve(cluster, argv)), sys.argv[1:]))
