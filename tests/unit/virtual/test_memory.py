"""Memory that a virtual rank gives back behind a step: the next one reads nothing of it before it writes it."""

import numpy as np
import pytest

from psframe.cluster.joining import join
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
