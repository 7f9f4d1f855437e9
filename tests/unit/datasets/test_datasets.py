"""The contract of every dataset: shapes, types, slices, labels, and the same samples every time."""

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from psframe.datasets import TABLE
from psframe.datasets.base import Split
from psframe.errors import UserError
from tests.helpers import dataset_files as write
from tests.helpers.launcher import ROOT


def nothing(root: Path) -> dict[str, Any]:
    return {}


#: dataset -> ways of writing it into a folder, which return its arguments
CASES: dict[str, dict[str, Callable[[Path], dict[str, Any]]]] = {
    "mnist_5k": {"wheel": nothing},
    "fashion_mnist": {"debian": nothing},
    "digits": {"wheel": nothing},
    "idx": {
        "plain": write.write_idx,
        "gz": partial(write.write_idx, gz=True),
        "dot": partial(write.write_idx, dot="."),
        "colour": partial(write.write_idx, images=write.pictures(42, 3, 5, 4)),
        "colour_gz": partial(write.write_idx, images=write.pictures(42, 3, 5, 4), gz=True),
    },
    "cifar10": {
        "bin": write.write_cifar_bin,
        "python3": write.write_cifar_python,
        "python2": partial(write.write_cifar_python, dumps=write.python2_pickle),
    },
    "hdf5": {
        "groups": write.write_hdf5,
        "root": partial(write.write_hdf5, layout="root"),
        "one": partial(write.write_hdf5, layout="one", chunks=(4, 3, 5, 4), compression="gzip"),
        "float64": partial(write.write_hdf5, dtype="float64"),
        "big_endian": partial(write.write_hdf5, dtype=">f4"),
    },
    "image_folder": {
        "val": write.write_image_folder,
        "test": partial(write.write_image_folder, splits=("train", "test")),
        "one": partial(write.write_image_folder, splits=("",)),
    },
    "har": {"wheel": nothing, "npy": write.write_npy, "ts": write.write_ts},
    "synthetic": {
        "default": nothing,
        "sequences": lambda root: {"shape": [2, 9], "classes": 3, "samples": 20},
        "few": lambda root: {"classes": 7, "samples": 1},
    },
}
INTERLEAVED = {"mnist_5k", "digits", "image_folder", "har", "synthetic"}
FROM_ONE_FILE = {"mnist_5k", "digits", "synthetic"}
N_CLASSES = {"mnist_5k": 10, "fashion_mnist": 10, "digits": 10, "cifar10": 10}


@pytest.fixture(params=[(name, way) for name in TABLE for way in CASES[name]], ids=lambda case: "-".join(case))
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, Any]]:
    """Name and arguments; skips what is not installed here."""
    name, way = request.param
    arguments = CASES[name][way](tmp_path)
    if way in ("wheel", "debian"):
        try:
            write.load(name)
        except UserError as error:
            pytest.skip(str(error))
    return name, arguments


def whole(split: Split) -> tuple[np.ndarray, np.ndarray]:
    return split.read(0, split.n)


def test_datasets_are_all_in_the_suite():
    assert set(CASES) == set(TABLE)


def test_shapes_types_and_labels(case):
    name, arguments = case
    dataset = write.load(name, **arguments)
    assert dataset.n_classes == N_CLASSES.get(name, dataset.n_classes)
    assert dataset.dtype in ("uint8", "float32")
    assert all(type(size) is int for size in (*dataset.shape, dataset.n_classes, dataset.train.n, dataset.test.n))
    for split in (dataset.train, dataset.test):
        images, labels = whole(split)
        assert images.shape == (split.n, *dataset.shape)
        assert str(images.dtype) == dataset.dtype
        assert labels.shape == (split.n,)
        assert labels.dtype.kind in "iu"
        assert labels.min() >= 0
        assert labels.max() < dataset.n_classes


def test_slices_equal_the_whole(case):
    name, arguments = case
    dataset = write.load(name, **arguments)
    for split in (dataset.train, dataset.test):
        images, labels = whole(split)
        step = max(1, split.n // 5)
        slices = [split.read(lo, min(lo + step, split.n)) for lo in reversed(range(0, split.n, step))]
        np.testing.assert_array_equal(np.concatenate([x for x, _ in reversed(slices)]), images)
        np.testing.assert_array_equal(np.concatenate([y for _, y in reversed(slices)]), labels)


def test_loads_are_equal_and_limit_gives_the_first_samples(case):
    name, arguments = case
    dataset, again, few = (
        write.load(name, **arguments),
        write.load(name, **arguments),
        write.load(name, **arguments, limit=3),
    )
    assert (few.train.n, few.test.n) == (min(3, dataset.train.n), min(3, dataset.test.n))
    assert few.n_classes == dataset.n_classes
    for split, same, first in ((dataset.train, again.train, few.train), (dataset.test, again.test, few.test)):
        for values, equal, start in zip(whole(split), whole(same), whole(first), strict=True):
            np.testing.assert_array_equal(values, equal)
            np.testing.assert_array_equal(values[:3], start)
    assert write.load(name, **arguments, limit=10**9).train.n == dataset.train.n


def test_samples_at_first_hold_every_class(case):
    name, arguments = case
    dataset = write.load(name, **arguments)
    if name in INTERLEAVED and dataset.train.n >= 2 * dataset.n_classes:
        _, labels = dataset.train.read(0, 2 * dataset.n_classes)
        assert set(labels) == set(range(dataset.n_classes))


def test_splits_are_disjoint(case, request):
    name, arguments = case
    if name in FROM_ONE_FILE or "-one" in request.node.name:
        dataset = write.load(name, **arguments)
        train, test = ({sample.tobytes() for sample in whole(split)[0]} for split in (dataset.train, dataset.test))
        assert not train & test


@pytest.mark.parametrize("name", ["mnist_5k", "digits", "har"])
def test_packages_that_carry_data_are_not_imported(name):
    try:
        write.load(name)
    except UserError as error:
        pytest.skip(str(error))
    loads = f"import sys; from tests.helpers import dataset_files; dataset_files.load({name!r}); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", loads], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert not {"mlxtend", "sklearn", "aeon"} & set(loaded.split())


def test_hdf5_without_test_arrays_splits_every_fifth_sample(tmp_path):
    arguments = write.write_hdf5(tmp_path, "one")
    dataset = write.load("hdf5", **arguments)
    assert (dataset.train.n, dataset.test.n) == (34, 8)
    np.testing.assert_array_equal(dataset.test.read(0, 8)[1], np.arange(4, 42, 5) % 3)
    np.testing.assert_array_equal(dataset.train.read(3, 6)[1], np.array([3, 5, 6]) % 3)


def test_idx_holds_the_values_written(tmp_path):
    images = write.pictures(42, 5, 4)
    dataset = write.load("idx", **write.write_idx(tmp_path, images))
    np.testing.assert_array_equal(dataset.train.read(10, 20)[0][:, 0], images[10:20])
    np.testing.assert_array_equal(dataset.test.read(0, 12)[0][:, 0], images[30:])


def test_cifar10_versions_hold_the_values_written(tmp_path):
    write.write_cifar_bin(tmp_path)
    rows = np.fromfile(tmp_path / "data_batch_2.bin", np.uint8).reshape(12, 3073)
    written = write.load("cifar10", path=str(tmp_path)).train.read(12, 24)[0].reshape(12, 3072)
    np.testing.assert_array_equal(written, rows[:, 1:])
    for dumps in (write.python2_pickle, write.python3_pickle):
        root = tmp_path / dumps.__name__
        root.mkdir()
        write.write_cifar_python(root, dumps)
        (root / "cifar-10-batches-py" / "data_batch_2").write_bytes(dumps(rows[:, 1:], rows[:, 0].tolist()))
        images, labels = write.load("cifar10", path=str(root)).train.read(12, 24)
        np.testing.assert_array_equal(images.reshape(12, 3072), rows[:, 1:])
        np.testing.assert_array_equal(labels, rows[:, 0])


@pytest.mark.parametrize("order", ["Up Down Flat", "Flat Down Up"])
def test_ts_labels_are_numbered_in_the_order_of_the_training_file(tmp_path, order):
    """Not in the order of its sequences, nor in that of the test file's names."""
    names = ["Down", "Flat", "Up", "Flat"]
    for split, declared in (("TRAIN", order), ("TEST", "Down Flat Up")):
        lines = [f"{order.split().index(name)},7:8,9:{name}" for name in names]
        text = "\n".join(["@problemName Small", f"@classLabel true {declared}", "@data", *lines])
        (tmp_path / f"Small_{split}.ts").write_text(text)
    dataset = write.load("har", path=str(tmp_path))
    assert (dataset.n_classes, dataset.shape) == (3, (2, 2))
    for samples, labels in (whole(dataset.train), whole(dataset.test)):
        np.testing.assert_array_equal(samples[:, 0, 0], labels)
        np.testing.assert_array_equal(samples[:, :, 1], [[7, 9]] * 4)
        np.testing.assert_array_equal(samples[:, 1, 0], 8)


def test_image_folder_scales_crops_and_turns_upright(tmp_path):
    for name in ("a", "b"):
        for split in ("train", "test"):
            (tmp_path / split / name).mkdir(parents=True)
            halves = np.zeros((40, 80, 3), np.uint8)
            halves[:, 40:] = 255
            exif = Image.Exif()
            exif[0x0112] = 6  # stored lying on its side: to be turned by 90 degrees clockwise
            Image.fromarray(halves).save(tmp_path / split / name / "x.png", exif=exif)
    dataset = write.load("image_folder", path=str(tmp_path), size=[28, 28])
    assert (dataset.shape, dataset.crop, dataset.flip) == ((3, 32, 32), (28, 28), True)
    assert dataset.mean == pytest.approx((123.675, 116.28, 103.53))
    assert dataset.std == pytest.approx((58.395, 57.12, 57.375))
    image = dataset.train.read(0, 1)[0][0]
    assert image[:, :14].max() == 0
    assert image[:, 18:].min() == 255


def test_synthetic_can_be_learned():
    dataset = write.load("synthetic", classes=4, samples=200, shape=[1, 8, 8])
    (x, y), (test_x, test_y) = whole(dataset.train), whole(dataset.test)
    means = np.stack([x[y == label].mean(axis=0) for label in range(4)])
    distances = ((test_x[:, None] - means) ** 2).sum(axis=(2, 3, 4))
    assert np.mean(distances.argmin(axis=1) == test_y) > 0.95


@pytest.mark.parametrize(
    ("keys", "n_train", "n_test"),
    [
        ({}, 4096, 819),
        ({"classes": 7, "samples": 1}, 1, 7),
        ({"classes": 7, "samples": 34}, 34, 7),
        ({"classes": 7, "samples": 40}, 40, 8),
        ({"classes": 7, "samples": 200, "limit": 39}, 39, 39),
        ({"classes": 7, "samples": 20, "limit": 9}, 9, 7),
        ({"classes": 1, "samples": 4}, 4, 1),
    ],
)
def test_synthetic_tests_a_fifth_as_many_and_every_class(keys, n_train, n_test):
    """But for a limit, which holds for either split."""
    dataset = write.load("synthetic", **keys, shape=[1, 2])
    assert (dataset.train.n, dataset.test.n) == (n_train, n_test)
    for split in (dataset.train, dataset.test):
        np.testing.assert_array_equal(whole(split)[1], np.arange(split.n) % keys.get("classes", 10))
