"""Input that psframe must refuse in a sentence, and arrays in HDF5 that lead elsewhere or claim too much."""

import h5py
import numpy as np
import pytest

from psframe.errors import UserError


def refuse(read, *words):
    """Assert that ``read()`` is refused in a sentence that a terminal can show, with these words."""
    with pytest.raises(UserError) as caught:
        read()
    assert all(word in str(caught.value) for word in words), caught.value
    assert str(caught.value).isprintable()


HDF5 = {  # what stands in the place of the array, and words of the sentence
    "another file": (lambda f, at: f.update({at: h5py.ExternalLink("other.h5", "x")}), "link"),
    "a soft link": (lambda f, at: f.update({at: h5py.SoftLink("/x")}), "link"),
    "external storage": (lambda f, at: f.create_dataset(at, (30,), "u1", external=[("other", 0, 30)]), "other files"),
    "virtual": (lambda f, at: f.create_virtual_dataset(at, virtual()), "other files"),
    "objects": (lambda f, at: f.create_dataset(at, (30,), h5py.string_dtype()), "no numbers"),
    "too much": (lambda f, at: f.create_dataset(at, (2**40, 2**20, 1), "u1", chunks=(1, 1, 1)), "can hold"),
    "an overflow": (lambda f, at: f.create_dataset(at, (2**62, 2**62, 16), "u1", chunks=(1, 1, 1)), "can hold"),
    "a chunk": (lambda f, at: large_chunk(f, at), "chunks of"),
}


def virtual():
    made = h5py.VirtualLayout((30,), "u1")
    made[:] = h5py.VirtualSource("other.h5", "x", (30,))
    return made


def large_chunk(file, at):
    file["that the file may hold as much"] = np.zeros(1 << 19, np.uint8)
    file.create_dataset(at, (2**20, 301), "u1", chunks=(2**20, 301), compression="gzip")
