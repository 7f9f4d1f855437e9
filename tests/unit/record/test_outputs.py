"""Output files that a user names: they take a file's place once they are whole, and never that of an input."""

import os

import pytest

from psframe.errors import UserError
from psframe.record.folder import chosen_output, refuse_inputs


def test_output_takes_the_place_of_a_file_once_it_is_whole(tmp_path):
    path = tmp_path / "out.csv"
    path.write_text("old")
    path.chmod(0o640)
    with pytest.raises(UserError, match="on the way"), chosen_output(path) as file:
        file.write("half")
        raise UserError("on the way")
    assert path.read_text() == "old"
    with chosen_output(path) as file:
        file.write("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["out.csv"]


def test_output_that_is_read_is_refused(tmp_path):
    path, other = tmp_path / "in.npy", tmp_path / "in.csv"
    path.write_bytes(b"")
    other.symlink_to(path)
    refuse_inputs(str(tmp_path / "new.csv"), [str(path)])
    for out in (path, other):
        with pytest.raises(UserError, match="--out must be another file than those that are read"):
            refuse_inputs(str(out), [str(path)])
