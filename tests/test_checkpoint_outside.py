"""A checkpoint from elsewhere leads nowhere else: its seal shows damage, and not who made it."""

import h5py
import numpy as np
import pytest

from psframe.record import checkpoint
from tests.test_outside import HDF5, refuse


@pytest.mark.parametrize("what", HDF5)
def test_a_checkpoint_holds_all_that_it_claims(what, tmp_path):
    put, word = HDF5[what]
    state = np.zeros((1, 10), np.float32)
    path = checkpoint.write(tmp_path, checkpoint.Saved(state[0], state, 1, 5, "layout"))
    checkpoint.advance(path, 3)
    assert checkpoint.latest(tmp_path, "layout").step == 5
    with h5py.File(path, "r+") as file:
        del file["params"]
        put(file, "params")
    seal = checkpoint._seal(path)  # whoever can make a file can seal it
    with open(path, "r+b") as file:
        file.write(seal)
    refuse(lambda: checkpoint.latest(tmp_path, "layout"), path.name, word)


@pytest.mark.parametrize("name", ["../epoch-00001.h5", "/dev/zero", "..", "a\0b", ""])
def test_latest_names_a_file_beside_it(name, tmp_path):
    (tmp_path / "latest").write_text(name + "\n")
    refuse(lambda: checkpoint.latest(tmp_path, "layout"), "latest", "beside it")
