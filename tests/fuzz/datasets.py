"""The datasets' files: one file of a sound dataset becomes the input."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.fuzz.base import Make, Prepared, told
from tests.fuzz.hdf5_files import build
from tests.helpers import dataset_files as write


def replaced(name: str, written: Callable[[Path], dict[str, Any]], place: str, packed: str = "") -> Make:
    """Return the target in which the file at ``place`` is the input, and also the file ``packed`` with it in gzip."""

    def make(folder: Path) -> Prepared:
        arguments = written(folder)
        file = folder / place
        seed = file.read_bytes()

        def read(data: bytes) -> None:
            file.write_bytes(data)
            with told():
                write.read_all(name, arguments)
            if packed:
                file.unlink()
                (folder / packed).write_bytes(gzip.compress(data, 1))
                with told():
                    write.read_all(name, arguments)
                (folder / packed).unlink()

        return Prepared([seed], read)

    return make


def write_digits(root: Path) -> dict[str, Any]:
    """Write 20 digits of 8 x 8 pixels."""
    lines = [",".join(map(str, [*pixels.ravel() // 16, i % 10])) for i, pixels in enumerate(write.pictures(20, 8, 8))]
    (root / "digits.csv.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    return {"path": str(root / "digits.csv.gz")}


def digits(folder: Path) -> Prepared:
    """The input is the file, and then what is packed in it."""
    arguments = write_digits(folder)
    file = folder / "digits.csv.gz"
    seed = file.read_bytes()

    def read(data: bytes) -> None:
        for content in (data, gzip.compress(data, 1)):
            file.write_bytes(content)
            with told():
                write.read_all("digits", arguments)

    return Prepared([seed, gzip.decompress(seed)], read)


def hdf5(folder: Path) -> Prepared:
    """The input is a program that builds an HDF5 file (``hdf5_files``): on damaged ones the library itself may die."""
    images, labels = np.zeros((10, 1, 2, 2), np.uint8), np.arange(10) % 3
    arrays = {"images": images, "labels": labels, "test_images": images, "test_labels": labels}
    file = folder / "data.h5"

    def read(data: bytes) -> None:
        build(file, data, arrays, {"n_classes": 3})
        with told():
            write.read_all("hdf5", {"path": str(file)})

    return Prepared([bytes(range(120)), bytes(120)], read)


def cut_hdf5(folder: Path) -> Prepared:
    """The input's first bytes say where a sound file ends."""
    arguments = write.write_hdf5(folder, chunks=(7, 3, 5, 4), compression="gzip")
    file = folder / "data.h5"
    sound = file.read_bytes()

    def read(data: bytes) -> None:
        file.write_bytes(sound[: int.from_bytes(data[:2], "little")])
        with told():
            write.read_all("hdf5", arguments)

    return Prepared([b"\xff\xff", b"\0\4"], read)


def picture(folder: Path) -> Prepared:
    arguments = write.write_image_folder(folder, n=2)
    file = folder / "train" / "dog" / "0.png"
    seeds = [each.read_bytes() for each in sorted(folder.rglob("*.*")) if each.suffix in (".png", ".tif")]
    for suffix in ("jpg", "gif", "bmp", "ppm", "webp"):
        other = file.with_name(f"seed.{suffix}")
        with write.Image.open(file) as image:
            image.convert("RGB").save(other)
        seeds.append(other.read_bytes())
        other.unlink()

    def read(data: bytes) -> None:
        file.write_bytes(data)
        with told():
            write.read_all("image_folder", arguments)

    return Prepared(seeds, read)


TARGETS = {
    "idx": replaced("idx", write.write_idx, "train-images-idx3-ubyte", "train-images-idx3-ubyte.gz"),
    "idx_labels": replaced("idx", write.write_idx, "t10k-labels-idx1-ubyte", "t10k-labels-idx1-ubyte.gz"),
    "idx_gz": replaced("idx", lambda root: write.write_idx(root, gz=True), "train-images-idx3-ubyte.gz"),
    "cifar10": replaced("cifar10", write.write_cifar_bin, "data_batch_1.bin"),
    "cifar10_python": replaced("cifar10", write.write_cifar_python, "cifar-10-batches-py/data_batch_1"),
    "ts": replaced("har", write.write_ts, "Small_TRAIN.ts"),
    "npy": replaced("har", write.write_npy, "X_train.npy"),
    "npy_labels": replaced("har", write.write_npy, "y_train.npy"),
    "digits": digits,
    "hdf5": hdf5,
    "hdf5_cut": cut_hdf5,
    "picture": picture,
}
