"""Stretches of training that candidates are compared by: their steps, and their seconds over all ranks."""

from unittest.mock import patch

import numpy as np

from psframe.cluster.joining import join
from psframe.train import epoch
from psframe.train.plan import plan
from psframe.tune import stretch
from tests.ranks.harness import ranks
from tests.ranks.training import TINY, folder


def _stretch(run, n_steps, took):
    """Train a stretch; this rank's clock says that it took so many seconds."""
    seen, train_epoch = [], epoch.train_epoch

    def timed(run):
        seen.append((run.progress.epoch, run.sampler.n_left))
        timings = train_epoch(run)
        timings.ended = timings.begun + took[run.cluster.rank]
        return timings

    with patch.object(epoch, "train_epoch", timed):
        found = stretch.train(run, n_steps)
    return found, *seen


@ranks(2, 3)
def stretch_takes_the_seconds_of_its_slowest_rank(world):
    took = [2.0, 7.0, 4.0][: world.size]
    with folder(world) as where:
        if world.rank == 0:
            (where / "config.yaml").write_text(TINY)
        cluster = join(world)
        for mode in ("allreduce", "async_ps"):
            made = plan.make(cluster, str(where / "config.yaml"), [*stretch.BESIDE, f"sync.mode={mode}"])
            candidate = stretch.Candidate(cluster, made, None)
            run, orders = candidate.run, (took, took[::-1])
            found = [_stretch(run, n_steps, order) for n_steps in (1, 3, 10**6) for order in orders]
            works = np.array(world.allgather(run.team.worker is not None))
            step, n_all = run.sampler.samples_per_step, run.sampler.n_samples
            candidate.close()
            every = world.allgather(found)
            assert not any(report for of_rank in every[1:] for report, _ in of_rank), every
            for number, (report, (at, n_left)) in enumerate(every[0]):
                assert report["samples"] == n_left == step * (1, 3, n_all // step)[number // 2], report
                assert at == every[0][0][1][0] + number, "samples of an epoch before"
                assert report["seconds"] == 7.0, report
                of_workers = np.array(orders[number % 2])[works]
                assert np.isclose(sum(report["phases"].values()), of_workers.mean()), report
