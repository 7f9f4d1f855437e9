"""A checkpoint from elsewhere leads nowhere else: its seal shows damage, and not who made it."""

import h5py
import pytest

from psframe.record import checkpoint
from tests.fuzz.checkpoints import Layout, reseal, written
from tests.test_outside import HDF5, refuse


@pytest.mark.parametrize("what", HDF5)
@pytest.mark.parametrize("place", ["params", "state", "layout"])
def test_a_checkpoint_holds_all_that_it_claims(what, place, tmp_path):
    path = written(tmp_path)
    assert checkpoint.newest(tmp_path, Layout())[0].step == 5
    with h5py.File(path, "r+") as file:
        del file[place]
        HDF5[what][0](file, place)
    reseal(path)
    refuse(lambda: checkpoint.newest(tmp_path, Layout()), path.name, place)


@pytest.mark.parametrize("name", ["../epoch-00001-step-0000000005.h5", "/dev/zero", "..", "a\0b", ""])
def test_latest_names_a_file_beside_it(name, tmp_path):
    path = written(tmp_path)
    (tmp_path / "latest").write_text(name + "\n")
    saved, notices = checkpoint.newest(tmp_path, Layout())
    assert saved.step == 5
    assert path.name in notices[0]
