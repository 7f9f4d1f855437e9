"""Candidates on the ranks of a job (:class:`Candidates`): ``mpirun -n N python -m psframe.tune.ranks CONFIG``.

Rank 0 reads requests, a JSON list a line, from stdin, and prints a JSON object for each. Until the next one no rank
computes or polls. They end with stdin.
"""

import gc
import json
import os
import resource
import sys
from collections.abc import Sequence
from time import sleep
from typing import Any, TextIO

from psframe.cluster import begin

begin.over_ranks()

import numpy as np  # noqa: E402
from mpi4py import MPI  # noqa: E402

from psframe import collectives  # noqa: E402
from psframe.cluster import affinity  # noqa: E402
from psframe.cluster.cluster import AgreedError, Cluster  # noqa: E402
from psframe.cluster.command import guarded, run  # noqa: E402
from psframe.cluster.communicators import mpi_name  # noqa: E402
from psframe.config import registry, tuned  # noqa: E402
from psframe.errors import UserError  # noqa: E402
from psframe.train.data.dataset import LoadedData  # noqa: E402
from psframe.train.plan import plan, without_ranks  # noqa: E402
from psframe.tune.stretch import BESIDE, Candidate, train  # noqa: E402

NAMES = ("shared", "hierarchical", "buffer")  # collectives whose defaults are reported
OF_DATA = ("dataset", "placement.data")  # choices that the data in memory depend on
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
        """Build a candidate; its data are those of another one if they are the same, in the same place."""
        affinity.bind(self.cpus)
        made = plan.make(self.cluster, self.path, [*self.given, *overrides, *BESIDE])
        self.held[number] = Candidate(self.cluster, made, self._data(made))
        return {}

    def look(self, number: int) -> dict[str, Any]:
        """Return the fields of :class:`psframe.tune.space.Origin`, for a candidate; on rank 0, elsewhere {}."""
        candidate, cluster = self.held[number], self.cluster
        affinity.bind(self.cpus)
        topology, run = candidate.plan.places.site.topology, candidate.run
        cores = affinity.n_cores(cluster, topology)
        candidate.resume(cluster)
        set_keys = cluster.run_on_root(lambda: tuned.set_keys(self.path, self.given))
        return {
            "machine": topology.title,
            "mpi": mpi_name(),
            "n_nodes": cluster.n_nodes,
            "cores": cores,
            "n_numa": sum(bool(node.cpus) for node in topology.nodes),
            "tiers": sorted({node.tier for node in topology.nodes if node.tier and node.allowed}),
            "n_workers": run.team.n_workers,
            "batch_size": run.sampler.batch_size,
            "global_batch": run.sampler.samples_per_step,
            "n_train": run.sampler.n_samples,
            "same_each_step": run.sync.traits.same_each_step,
            "own_statistics": run.network.meets == "batch",
            "metrics": ["accuracy", "loss", "test_loss", *run.metrics],
            "defaults": {name: registry.bind("collective", collectives.TABLE, {"name": name}).keys for name in NAMES},
            "config": candidate.plan.resolved,
            "set_keys": set_keys,
            "key": tuned.key(candidate.plan.resolved, set_keys),
        }

    def workers(self, number: int, *ways: tuple[Sequence[str], int]) -> dict[str, Any]:
        """Return the workers of each pair of overrides and ranks, and True if they step together; or why it cannot be.

        ``number`` is any candidate.
        """
        return {"found": self.cluster.run_on_root(lambda: [self._workers(*way) for way in ways])}

    def _workers(self, overrides: Sequence[str], n_ranks: int) -> tuple[int, bool] | str:
        try:
            verdict = without_ranks.check(self.path, [*self.given, *overrides], n_ranks)
        except UserError as error:
            return str(error)
        return verdict.roles.n_workers if verdict.roles else 1, verdict.judged.asked.traits.same_each_step

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
        def same(other: plan.Plan) -> bool:
            return other.facts == made.facts and all(other.choices[k] == made.choices[k] for k in OF_DATA)

        return next((c.run.held for c in self.held.values() if same(c.plan)), None)


def serve(cluster: Cluster, argv: Sequence[str]) -> int:
    """Answer the requests until stdin ends. All ranks must call."""
    replies = _replies()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # each candidate holds some files
    candidates = Candidates(cluster, argv[0], argv[1:])
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
            print(json.dumps(reply), file=replies, flush=True)


def _replies() -> TextIO:
    """Return the stream of replies: stdout as it was given, which what users' code prints does not reach any more."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return replies


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
