"""Checkpoints that are damaged, foreign, or made to do harm: told, and the newest one that is whole taken instead."""

import os

import h5py
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psframe.errors import UserError
from tests.helpers.checkpoints import is_saved, keep, newest, reseal
from tests.helpers.suite import examples
from tests.helpers.untrusted import HDF5, refuse

LATEST = {  # what `latest` holds: what is said of it
    "": "it is empty",
    "\n": "it is empty",
    "../epoch-00001-step-0000000010.h5": "no checkpoint of the folder",
    "/etc/passwd": "no checkpoint of the folder",
    "..\n": "no checkpoint of the folder",
    "/dev/zero\n": "no checkpoint of the folder",
    "a\0b\n": "no checkpoint of the folder",
    "epoch-00001.h5": "no checkpoint of the folder",
    "epoch-00009-step-0000000090.h5": "No such file or directory",
    "\0" * 30: "no checkpoint of the folder",
    "\xff\ud800" * 3: "no checkpoint of the folder",
    "epoch-00001-step-0000000010.h5" * 1000: "no checkpoint of the folder",
}


@pytest.mark.parametrize("text", LATEST, ids=lambda text: ascii(text)[:40])
def test_latest_that_is_damaged_is_told_and_the_newest_taken(tmp_path, text):
    keep(tmp_path, 1)
    keep(tmp_path, 2)
    (tmp_path / "epoch-00001-step-0000000010.h5").write_text("outside")
    (tmp_path / "checkpoints" / "latest").write_bytes(text.encode("utf-8", "surrogatepass"))
    found, (notice,) = newest(tmp_path)
    is_saved(found, 2)
    assert LATEST[text] in notice
    assert "epoch-00002-step-0000000020.h5" in notice
    assert len(notice.splitlines()) == 1


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
@pytest.mark.parametrize("name", ["latest", "epoch-00002-step-0000000020.h5"])
def test_path_that_is_no_file_is_never_waited_for(tmp_path, name, make):
    keep(tmp_path, 1)
    keep(tmp_path, 2)
    (tmp_path / "checkpoints" / name).unlink()
    make(tmp_path / "checkpoints" / name)
    found, (notice,) = newest(tmp_path)
    is_saved(found, 2 if name == "latest" else 1)
    assert any(words in notice for words in ("it is no regular file", "Is a directory", "it is a link")), notice


@given(st.data())
@settings(max_examples=examples(300))
def test_damaged_file_is_read_as_it_was_or_refused(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("damage")
    keep(folder, 1)
    path = keep(folder, 2)
    whole = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        if data.draw(st.booleans()):
            del whole[data.draw(st.integers(0, len(whole))) :]
        elif whole:
            at = data.draw(st.integers(0, len(whole) - 1))
            whole[at] ^= data.draw(st.integers(1, 255))
        whole += data.draw(st.binary(max_size=20))
    path.write_bytes(whole)
    found, notices = newest(folder)
    if notices:
        assert str(path) in notices[0]
        is_saved(found, 1)
    else:
        is_saved(found, 2)
    (folder / "checkpoints" / "epoch-00001-step-0000000010.h5").unlink()
    if notices:
        with pytest.raises(UserError, match="a checkpoint must be whole, got"):
            newest(folder)


def _instead(name, **made):
    def change(file):
        del file[name]
        file.create_dataset(name, **made)

    return change


def _claims(name, what):
    def change(file):
        del file[name]
        HDF5[what][0](file, name)

    return change


def _group(file):
    del file["params"]
    file.create_group("params")


HARM = {  # what is done to a checkpoint before it is sealed again: words of what is said of it
    "longer than the file": (_instead("params", shape=2**50, dtype="f4", chunks=(1024,)), "its params are no float32"),
    "packed": (_instead("params", shape=16, dtype="f4", compression="gzip"), "its params are no float32"),
    "another length": (_instead("params", shape=1, dtype="f4", data=[1.0]), "its params are no float32"),
    "another type": (_instead("params", shape=16, dtype="f8", data=[0.0] * 16), "its params are no float32"),
    "another byte order": (_instead("params", shape=16, dtype=">f4", data=[0.0] * 16), "its params are no float32"),
    "never filled": (_instead("params", shape=16, dtype="f4"), "its params are not all there"),
    "too many axes": (_instead("params", shape=(1, 16), dtype="f4", data=[[0.0] * 16]), "its arrays have other shapes"),
    "in another file": (
        _instead("params", shape=16, dtype="f4", external=[("/etc/passwd", 0, 64)]),
        "its params are no float32",
    ),
    "a group": (_group, "its params are no float32"),
    "no array": (lambda file: file.__delitem__("state"), "its state are no float32"),
    "state of another length": (
        _instead("state", shape=(1, 17), dtype="f4", data=[[0.0] * 17]),
        "its state are no float32",
    ),
    "a count less than 0": (lambda file: file.attrs.modify("cursor", -1), "its cursor is no count"),
    "no count": (lambda file: file.attrs.__delitem__("cursor"), "cursor"),
    "a count that is a text": (lambda file: file.attrs.create("cursor", "7"), "its cursor is no count"),
    "another epoch than its name's": (lambda file: file.attrs.modify("epoch", 7), "it is of epoch 7 and step 20"),
    "a text that is none": (_instead("layout", shape=3, dtype="u1", data=[255] * 3), "utf-8"),
    **{
        f"{name}: {what}": (_claims(name, what), f"its {name} are no ")
        for name in ("params", "state", "layout")
        for what in HDF5
    },
}


@pytest.mark.parametrize("case", HARM)
def test_file_made_to_do_harm_is_refused(tmp_path, case):
    """Its seal shows damage, and not who made it."""
    change, said = HARM[case]
    older, path = keep(tmp_path, 1), keep(tmp_path, 2)
    with h5py.File(path, "r+") as file:
        change(file)
    reseal(path)
    found, (notice,) = newest(tmp_path)
    is_saved(found, 1)
    assert path.name in notice
    assert said in notice
    older.unlink()
    refuse(lambda: newest(tmp_path), path.name, said)


def test_files_of_others_are_told(tmp_path):
    path = keep(tmp_path, 1)
    for text in (b"", b"\x89HDF\r\n\x1a\n" + bytes(1000), b"psframe checkpoint 1, sha256 " + bytes(1000)):
        path.write_bytes(text)
        with pytest.raises(UserError, match=r"none of psframe's|of another version"):
            newest(tmp_path)
