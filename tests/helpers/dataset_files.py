"""Small datasets on disk, one writer for each format, and reading them as a config does."""

import gzip
import pickle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from PIL import Image

from psframe.config import registry
from psframe.datasets import TABLE
from psframe.datasets.base import Dataset


def load(name: str, **arguments: Any) -> Dataset:
    """Return the dataset that a config's section ``dataset`` names."""
    return registry.bind("dataset", TABLE, {"name": name, **arguments})()


def read_all(name: str, arguments: dict[str, Any]) -> None:
    """Load the dataset and read both splits."""
    dataset = load(name, **arguments)
    for split in (dataset.train, dataset.test):
        if split.n:
            split.read(0, split.n)


def pictures(n: int, *shape: int, seed: int = 0) -> np.ndarray:
    """Return uint8 (n, *shape), the same for the same arguments."""
    return np.random.default_rng((seed, n, *shape)).integers(0, 256, (n, *shape), dtype=np.uint8)


def idx_bytes(values: np.ndarray) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes() + values.tobytes()


def write_idx(root: Path, images: np.ndarray | None = None, gz: bool = False, dot: str = "-") -> dict[str, str]:
    """Write 30 training and 12 test samples of 3 classes."""
    images = pictures(42, 5, 4) if images is None else images
    labels = (np.arange(42) % 3).astype(np.uint8)
    for split, at in (("train", slice(30)), ("t10k", slice(30, 42))):
        for kind, values in (("images", images[at]), ("labels", labels[at])):
            name = f"{split}-{kind}{dot}idx{values.ndim}-ubyte"
            content = idx_bytes(values)
            (root / (name + ".gz" * gz)).write_bytes(gzip.compress(content) if gz else content)
    return {"path": str(root)}


def write_cifar_bin(root: Path) -> dict[str, str]:
    """Write 12 samples a file, of 10 classes."""
    for seed, name in enumerate([f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]):
        pixels = pictures(12, 3072, seed=seed)
        (root / name).write_bytes(np.insert(pixels, 0, np.arange(12) % 10, axis=1).tobytes())
    return {"path": str(root)}


def python3_pickle(images: np.ndarray, labels: list[int]) -> bytes:
    """Return a batch as Python 3 writes it under protocol 2: uint8 images (n, 3072)."""
    filenames = [b"a_%d.png" % i for i in range(len(labels))]
    batch = {b"batch_label": b"batch", b"labels": labels, b"data": images, b"filenames": filenames}
    return pickle.dumps(batch, protocol=2)


def python2_pickle(images: np.ndarray, labels: list[int]) -> bytes:
    """Return a batch as Python 2 wrote it under protocol 2: byte strings as they are. uint8 images (n, 3072)."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    raw = images.tobytes()
    integers = b"".join(b"K" + bytes([label]) for label in labels)
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85" + text(b"b") + b"tR"
    shape = b"K" + bytes([len(images)]) + b"M\x00\x0c\x86"
    dtype = (
        b"cnumpy\ndtype\n"
        + text(b"u1")
        + b"K\x00K\x01\x87R(K\x03"
        + text(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    )
    data = array + b"(K\x01" + shape + dtype + b"\x89T" + len(raw).to_bytes(4, "little") + raw + b"tb"
    return b"\x80\x02}q\x01(" + text(b"data") + data + text(b"labels") + b"](" + integers + b"eu."


def write_cifar_python(root: Path, dumps=python3_pickle) -> dict[str, str]:
    """Write 12 samples a file, of 10 classes, in the folder that the archive unpacks to."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir()
    for seed, name in enumerate([f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]):
        (folder / name).write_bytes(dumps(pictures(12, 3072, seed=seed), [i % 10 for i in range(12)]))
    return {"path": str(root)}


def write_hdf5(root: Path, layout: str = "groups", dtype: str = "uint8", **options: object) -> dict[str, str]:
    """Write 42 samples of 3 classes."""
    images, labels = pictures(42, 3, 5, 4).astype(dtype), np.arange(42) % 3
    names = {"groups": ("train/", "test/"), "root": ("", "test_"), "one": ("",)}[layout]
    with h5py.File(root / "data.h5", "w") as f:
        for at, prefix in zip(np.split(np.arange(42), [30] if len(names) == 2 else []), names, strict=True):
            f.create_dataset(f"{prefix}images", data=images[at], **options)
            f.create_dataset(f"{prefix}labels", data=labels[at])
    return {"path": str(root / "data.h5")}


def write_image_folder(root: Path, splits: tuple[str, ...] = ("train", "val"), n: int = 6) -> dict[str, object]:
    """Write ``n`` pictures a class, of sizes and modes as they come."""
    modes = ["RGB", "L", "RGBA", "P", "CMYK", "1"]
    for number, split in enumerate(splits):
        for label, name in enumerate(("cat", "dog", "emu")):
            (root / split / name).mkdir(parents=True)
            (root / split / name / "notes.txt").write_text("no picture")
            for i in range(n):
                (pixels,) = pictures(1, 30 + 3 * i, 50 - 5 * i, 3, seed=3 * number + label)
                image = Image.fromarray(pixels).convert(modes[(i + label) % 6])
                image.save(root / split / name / f"{i}.{'tif' if image.mode == 'CMYK' else 'png'}")
    return {"path": str(root), "size": (14, 21)}


def write_npy(root: Path) -> dict[str, str]:
    """Write 12 training and 6 test sequences of 3 classes, sorted by class."""
    for split, n in (("train", 12), ("test", 6)):
        np.save(root / f"X_{split}.npy", np.random.default_rng(n).normal(size=(n, 2, 9)))
        np.save(root / f"y_{split}.npy", np.sort(np.arange(n) % 3))
    return {"path": str(root)}


def ts_text(n: int = 6, dimensions: int = 2, length: int = 3, value: str = "0.5") -> str:
    """Return a .ts file of n samples of the classes Up and Down."""
    channel = ",".join([value] * length)
    lines = [f"{':'.join([channel] * dimensions)}:{'Up' if i % 2 else 'Down'}" for i in range(n)]
    header = (
        f"# made up\n@problemName Small\n@dimensions {dimensions}\n@seriesLength {length}\n@classLabel true Up Down"
    )
    return "\n".join([header, "@data", *lines]) + "\n"


def write_ts(root: Path) -> dict[str, str]:
    for split in ("TRAIN", "TEST"):
        (root / f"Small_{split}.ts").write_text(ts_text())
    return {"path": str(root)}
