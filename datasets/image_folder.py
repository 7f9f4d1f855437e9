"""One folder of images per class, the layout of ImageNet (:func:`image_folder`)."""

import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from psframe.config import untrusted
from psframe.config.registry import PositiveInt
from psframe.datasets import files
from psframe.datasets.base import Dataset, Split, interleave, stratified
from psframe.errors import UserError

#: permitted decoders; by default Pillow would try all it has, and start Ghostscript for PostScript
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
MAX_PIXELS = 89_478_485  # a quarter of a GiB of RGB: Pillow's default, even if changed elsewhere
SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp"}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, as fractions of full brightness


def image_folder(
    *, path: str, size: tuple[PositiveInt, PositiveInt] = (224, 224), limit: PositiveInt | None = None
) -> Dataset:
    """Return the images in a folder, classes in the order of their names, interleaved by class.

    An image is scaled so that it just covers ``size`` * 256 / 224, and its centre of that size is stored, as in
    Krizhevsky et al. 2012 (section 4.1) and Simonyan and Zisserman 2015. Training crops ``size`` at random and mirrors;
    testing crops the centre. Of several frames the first is used.

    Parameters
    ----------
    path : str
        Folder with train/CLASS and test/CLASS (or val/CLASS); or with CLASS, of which every fifth image, by name, is a
        test sample. In CLASS, files without the suffix of an image are ignored.
    size : (int, int)
        Height and width of the network's input, in pixels.
    limit : int, optional
        Maximum number of samples of each split.

    Returns
    -------
    Dataset
        uint8 (3, H * 256 / 224, W * 256 / 224), RGB; mean and std are ImageNet's.

    Raises
    ------
    UserError
        Pillow or a folder is missing, a class has no image, or a link leads out of the folder; from ``read``: an image
        is damaged or too large.
    """
    _pillow()
    root = files.folder(path, "one folder of pictures a class")
    with files.reading(root, "a folder of one folder a class"):
        _entries(root, root)
    stored = (round(size[0] * 256 / 224), round(size[1] * 256 / 224))
    if (root / "train").is_dir():
        train = _listed(root, root / "train")
        test = _listed(root, next((d for d in (root / "test", root / "val") if d.is_dir()), root / "test"))
        if train.classes != test.classes:
            raise UserError(
                "train and test must have the same classes, got "
                f"{sorted(set(train.classes) ^ set(test.classes))[:5]} in one only in {root}; "
                "add their pictures or take the folders away"
            )
        train_order, test_order = interleave(train.labels), interleave(test.labels)
    else:
        train = test = _listed(root, root)
        train_order, test_order = stratified(train.labels)
    return Dataset(
        shape=(3, *stored),
        dtype="uint8",
        n_classes=len(train.classes),
        train=_split(train, train_order[:limit], stored),
        test=_split(test, test_order[:limit], stored),
        crop=(size[0], size[1]),
        flip=True,
        mean=tuple(255 * value for value in MEAN),
        std=tuple(255 * value for value in STD),
    )


@dataclass(frozen=True)
class _Listed:
    """Classes of a folder, the paths (n) and labels (n,) of all their images."""

    classes: list[str]
    paths: list[str]
    labels: np.ndarray


def _listed(root: Path, folder: Path) -> _Listed:
    with files.reading(folder, "a folder of one folder a class"):
        classes = sorted(e.name for e in _entries(root, folder) if e.is_dir() and not e.name.startswith("."))
        if not classes:
            raise UserError(f"{folder} must hold one folder of pictures a class, got none; correct dataset.path")
        paths: list[str] = []
        labels = []
        for label, name in enumerate(classes):
            pictures = [e for e in _entries(root, folder / name) if Path(e.name).suffix.lower() in SUFFIXES]
            found = sorted(e.path for e in pictures if e.is_file())
            if not found:
                raise UserError(
                    f"every class must have at least one picture ({', '.join(sorted(SUFFIXES))}), got none in "
                    f"{folder / name}; add some or take the folder away"
                )
            paths += found
            labels += [label] * len(found)
    return _Listed(classes, paths, np.array(labels))


def _entries(root: Path, folder: Path) -> list[os.DirEntry[str]]:
    """Return the entries of ``folder``; raises UserError for a link that leads out of ``root``."""
    with os.scandir(folder) as entries:
        listed = list(entries)
    for entry in listed:
        if entry.is_symlink() and not Path(os.path.realpath(entry.path)).is_relative_to(os.path.realpath(root)):
            raise UserError(
                f"links must stay in the dataset's folder, got {entry.path} to {os.path.realpath(entry.path)}; "
                "copy the file there instead"
            )
    return listed


def _split(listed: _Listed, order: np.ndarray, stored: tuple[int, int]) -> Split:
    def read(lo: int, hi: int) -> tuple[np.ndarray, np.ndarray]:
        return np.stack([picture(listed.paths[i], stored) for i in order[lo:hi]]), listed.labels[order[lo:hi]]

    return Split(len(order), read)


def picture(path: str, stored: tuple[int, int], mode: str = "RGB") -> np.ndarray:
    """Return the centre of an image, uint8 (3, *stored), or (1, *stored) if ``mode`` is ``L``, grey."""
    image_of, ops = _pillow()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", image_of.DecompressionBombWarning)
            with untrusted.opened(path) as file, image_of.open(file, formats=FORMATS) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise ValueError(f"{image.width} x {image.height} pixels, and at most {MAX_PIXELS:,} are decoded")
                upright = ops.exif_transpose(image).convert(mode)
        fitted = ops.fit(upright, stored[::-1], image_of.Resampling.BILINEAR)
    except Exception as error:  # Pillow's decoders raise exceptions of every kind on damaged bytes
        reason = " ".join(str(error).split())
        raise UserError(
            f"{path} must be a whole picture of moderate size, got: {reason}; replace or remove it"
        ) from None
    return np.atleast_3d(np.asarray(fitted)).transpose(2, 0, 1)


def _pillow() -> tuple[Any, Any]:
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise UserError("image_folder must have Pillow, got none; pip install psframe[images]") from None
    return Image, ImageOps
