"""Keys of results of tuning: configs share a result where they train the same, and leave tuning the same keys."""

import pytest

from psframe.config import tuned
from psframe.train.plan import sections

BASE = "model: lenet\ndataset: digits\nsync: sync_ps\n"


@pytest.fixture
def key(tmp_path):
    """Return the key of the config with overrides, as both commands that know of results make it."""
    path = tmp_path / "mine.yaml"
    path.write_text(BASE)

    def of(*overrides):
        resolved, _ = sections.resolve(str(path), overrides, "shared")
        return tuned.key(resolved, tuned.set_keys(str(path), overrides))

    return of


@pytest.mark.parametrize(
    ("override", "values"),
    [
        ("affinity={}", ("none", "numa")),
        ("sync.server={}", ("colocated", "dedicated")),
        ("sync.servers={}", (1, 2)),
        ("train.threads={}", (1, 2)),
        ("parallel.schedule={}", ("gpipe", "1f1b")),
        ("parallel.micro_batches={}", (2, 4)),
        ("collective={}", ("shared", "buffer")),
        ("collective={{name: shared, reducers: {}}}", ("server", "cores", "all")),
        ("collective={{name: buffer, bucket_bytes: {}}}", (0, 65536)),
        ("collective={{name: buffer, compression: {}}}", ("none", "onebit", "int8")),
        ("collective={{name: buffer, compression: {{name: topk, density: {}}}}}", (0.1, 0.2)),
        ("placement.data={}", ("ddr", "hbw", "default")),
        ("placement.data={{numa: [{}]}}", (0, 1)),
        ("placement={{data: {{interleave: [{}]}}}}", (0, 1)),
        ("placement.exchange={{weighted: {{ddr: 1, hbw: {}}}}}", (1, 2)),
        ("placement.activations={{default: ddr, '*.kept': {}}}", ("ddr", "hbw")),
        ("placement.activations={{default: ddr, 0.conv2d.kept: {{numa: [{}]}}}}", (0, 1)),
        ("placement={{parameters: {{default: {}, conv1: ddr}}}}", ("ddr", "hbw")),
        ("placement.fallback={}", ("ddr", "none")),
        ("placement.hbw_nodes={}", ([0], [1])),
    ],
)
def test_key_has_what_a_user_has_set_of_what_tuning_may_change(key, override, values):
    """With another codec, or memory of another tier, another way is the fastest."""
    keys = [key(), *(key(override.format(value)) for value in values)]
    assert len(set(keys)) == len(keys)
    assert keys[1:] == [key(override.format(value)) for value in values]


@pytest.mark.parametrize(
    "override",
    [
        *("name=other", "record.dir=elsewhere", "record.steps=true", "checkpoint.every_epochs=7", "train.epochs=99"),
        *("train.seed=8", "train.batch_size=9", "train.stop={metric: test_loss, patience: 3}", "schedule=cosine"),
        *("fault.check_every=3", "versions={numpy: '1.0'}"),
    ],
)
def test_key_has_nothing_of_what_hardly_makes_a_step_faster(key, override):
    assert key(override) == key()


@pytest.mark.parametrize(
    "override",
    [
        *("model=alexnet", "dataset=synthetic", "train.precision=bf16", "train.reproducible=none", "sync=allreduce"),
        *("optimizer=adam", "augment.crop=2", "parallel.pipeline=2", "average=ema", "nn.kernels=blas"),
    ],
)
def test_key_has_what_a_config_trains(key, override):
    assert key(override) != key()
