"""Memory that a virtual rank gives back behind a step: the next one reads nothing of it before it writes it."""

import numpy as np
import pytest

from psframe.cluster.joining import join
from psframe.memory.tensor_names import role_of
from psframe.virtual.orders import ByTime
from psframe.virtual.training import trained
from tests.helpers.thinned import thinned
from tests.helpers.virtual import on_ranks
from tests.ranks.training import TINY

KEYS = (  # overrides, apart by " ; "
    "model={name: 'tests.helpers.tiny:build', dropout: 0.3}",
    "model=tests.helpers.tiny:meeting",
    "model=tests.helpers.tiny:residual",
    "model=tests.helpers.tiny:mixed ; dataset.shape=[2, 60]",
    "nn.kernels=winograd",
    "nn.kernels=blas",
    "train.precision=bf16",
    "augment={crop: 2, flip: both, cutout: 3, mixup: 0.4} ; train={reproducible: any_workers, global_batch: 24}",
)


class Seen(Exception):
    pass


@pytest.mark.parametrize("keys", thinned(KEYS, (0, 1, 6, 7)))
def test_gradients_are_the_same_where_activations_were_forgotten(tmp_path, keys):
    (tmp_path / "config.yaml").write_text(TINY)

    def gradients(run):
        run.work.gradients(np.arange(8), 8, 0, np.zeros(run.work.n_losses))
        return run.network.arena.grads.tobytes()

    def looked_at(run):
        before = gradients(run)
        activations = [memory for place, memory in run.blocks if place.startswith("activations")]
        assert any(memory.any() for memory in activations)
        for memory in activations:
            memory[:] = 0
        assert gradients(run) == before
        raise Seen

    asked = [f"record.dir={tmp_path / 'runs'}", "sync=allreduce", *keys.split(" ; ")]
    with pytest.raises(Seen):
        on_ranks(1, lambda world: trained(join(world), str(tmp_path / "config.yaml"), asked, looked_at), ByTime(1))


POSTING = (
    "sync=async_ps",
    "sync={mode: async_ps, store: window}",
    "sync={mode: async_ps, staleness: 1}",
    "sync={mode: async_ps, pull_every: 2, push_every: 2}",
    "sync={mode: async_ps, compensate: true}",
    "sync={mode: sync_ps, server: dedicated, backup_workers: 1}",
)


@pytest.mark.parametrize("sync", POSTING)
def test_worker_reads_nothing_of_gradients_that_it_has_posted(tmp_path, sync):
    (tmp_path / "config.yaml").write_text(TINY)

    def ends(prepare):
        asked = [f"record.dir={tmp_path / 'runs'}", "train.threads=1", sync]
        config = str(tmp_path / "config.yaml")
        found, _ = on_ranks(3, lambda world: trained(join(world), config, asked, prepare), ByTime(3))
        return found[0].sync._arena.params.tobytes()

    def spoiled(run):
        deliver = run.sync.mailbox.deliver

        def delivered(vectors):
            deliver(vectors)
            for place, memory in run.blocks:
                if role_of(place) == "gradients":
                    memory[:] = 0

        run.sync.mailbox.deliver = delivered

    assert ends(spoiled) == ends(lambda run: None)
