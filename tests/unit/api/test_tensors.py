"""Tensors of a run by name: of its newest checkpoint, of its best, of an average; and what a run without them says."""

import numpy as np
import pytest

from psframe.api.runs import Run
from psframe.errors import UserError
from psframe.memory.arena import Layout
from psframe.nn.base import Param
from psframe.record import checkpoint
from psframe.tensors import newest, tensors
from tests.helpers.checkpoints import keep, saved

CONFIG = "name: a-run\nmodel: lenet\ndataset: mnist_5k\noptimizer: {name: sgd, lr: 0.1}\ntrain: {epochs: 3}\n"
NAMES = {
    "0.Dense.weight": ("0.Dense.weight", Param((3, 4), (1, 0))),
    "1.Torch.body.0.bias": ("body.0.bias", Param((5,), (0,))),
    "2.Torch.scale": ("scale", Param((2,), (0,))),
}
LAYOUT = Layout({within: param for within, (_, param) in NAMES.items()})


def wanted(epoch, average=0):
    """Return the tensors of an epoch as they were written, in the shapes of PyTorch."""
    vector = saved(epoch, LAYOUT, average=average).evaluated
    return {name: LAYOUT.slots[within].view(vector) for within, (name, _) in NAMES.items()}


def same(found, tensors_wanted):
    assert list(found) == list(tensors_wanted)
    for name, tensor in found.items():
        np.testing.assert_array_equal(tensor, tensors_wanted[name])
        assert tensor.dtype == np.float32
        assert tensor.flags.c_contiguous


@pytest.fixture
def path(tmp_path):
    """Folder of a run whose first epoch of three was its best."""
    (tmp_path / "config.yaml").write_text(CONFIG)
    checkpoint.name_best(keep(tmp_path, 1, layout=LAYOUT))
    for epoch in (2, 3):
        keep(tmp_path, epoch, layout=LAYOUT)
    return tmp_path


def test_tensors_are_of_the_newest_checkpoint_or_of_the_best(path):
    assert (newest(path).epoch, newest(path, True).epoch) == (3, 1)
    assert not np.array_equal(wanted(3)["scale"], wanted(1)["scale"])
    for found in (tensors(path), tensors(str(path), False), Run(path).tensors()):
        same(found, wanted(3))
    for found in (
        tensors(path, True),
        tensors(str(path), best=True),
        Run(path, best=True).tensors(),
        Run(path).best.tensors(),
    ):
        same(found, wanted(1))


def test_export_writes_the_tensors_of_the_same_checkpoint(path, tmp_path):
    for run, epoch in ((Run(path), 3), (Run(path).best, 1)):
        run.save(tmp_path / "out.npz")
        with np.load(tmp_path / "out.npz") as file:
            same(dict(file), wanted(epoch))


def test_tensors_of_a_run_that_kept_an_average_are_that(path):
    keep(path, 4, layout=LAYOUT, average=1)
    same(tensors(path), wanted(4, average=1))
    assert not np.array_equal(wanted(4, average=1)["scale"], wanted(4)["scale"])
    same(tensors(path, True), wanted(1))


def test_tensors_that_were_never_written_are_told(tmp_path):
    for best in (False, True):
        with pytest.raises(UserError, match="a run must have a checkpoint, got none in"):
            tensors(tmp_path / "nowhere", best)
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(UserError, match="a run must have a checkpoint, got none in"):
        tensors(tmp_path)
    keep(tmp_path, 2, layout=LAYOUT)
    same(tensors(tmp_path), wanted(2))
    with pytest.raises(
        UserError, match=r"a run must have a best checkpoint, got none in .*train with checkpoint\.best"
    ):
        tensors(tmp_path, True)
