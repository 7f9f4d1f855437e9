"""Checks of a dataset (:func:`check`) and of its arrays (:func:`read`): a user's own may return anything."""

from typing import TYPE_CHECKING, Any

import numpy as np

from psframe.errors import UserError

if TYPE_CHECKING:
    from psframe.datasets.base import Dataset, Split


def check(dataset: "Dataset") -> None:
    """Raise UserError unless ``dataset`` is a valid :class:`psframe.datasets.base.Dataset`."""
    from psframe.datasets.base import Dataset, Split

    if not isinstance(dataset, Dataset):
        raise UserError(f"a dataset must be a psframe.datasets.base.Dataset, got {dataset!r}; return one")

    def must(what: str, rule: str, value: object, kept: bool) -> None:
        if not kept:
            raise UserError(f"a dataset's {what} must be {rule}, got {_described(value)}; mend the dataset")

    shape = dataset.shape
    must("shape", "(C, H, W) or (C, T), whole numbers of 1 or more", shape, _counts(shape, (2, 3)))
    must("n_classes", "a whole number of 1 or more", dataset.n_classes, _counts((dataset.n_classes,), (1,)))
    kept = isinstance(dataset.dtype, str) and dataset.dtype in ("uint8", "float32")
    must("dtype", "uint8 or float32", dataset.dtype, kept)
    for name, split in (("train", dataset.train), ("test", dataset.test)):
        must(name, "a psframe.datasets.base.Split (held(images, labels) makes one)", split, isinstance(split, Split))
        must(f"{name}.n", "a whole number of 1 or more", split.n, _counts((split.n,), (1,)))
        must(f"{name}.read", "a function of (lo, hi)", split.read, callable(split.read))
    crop = dataset.crop
    must("crop", "None or (height, width) in its shape", crop, crop is None or _is_crop(crop, shape))
    for name, values, lower, bound in (("mean", dataset.mean, -np.inf, ""), ("std", dataset.std, 0.0, " above 0")):
        rule = f"None or {shape[0]} finite numbers{bound}, one a channel"
        must(name, rule, values, values is None or _is_row(values, shape[0], lower))


def read(split: "Split", lo: int, hi: int, shape: tuple[int, ...], kind: np.dtype, name: str) -> tuple[Any, Any]:
    """Return images (hi - lo, *shape) and labels (hi - lo,) of a split; UserError if it returns anything else.

    Parameters
    ----------
    kind : dtype
        Dtype of the images in memory; theirs must be of the same kind.
    name : str
        Name of the split, for the message.
    """
    result = split.read(lo, hi)
    if isinstance(result, tuple) and len(result) == 2:
        x, y = result
        if (
            isinstance(x, np.ndarray) and isinstance(y, np.ndarray)
            and x.shape == (hi - lo, *shape) and y.shape == (hi - lo,)
            and np.can_cast(x.dtype, kind, "same_kind" if kind.kind == "f" else "safe") and y.dtype.kind in "iu"
        ):  # fmt: skip
            return x, y
        got = f"{_described(x)} and {_described(y)}"
    else:
        got = _described(result)
    raise UserError(
        f"read({lo}, {hi}) of the {name} split must return two NumPy arrays, {kind} {(hi - lo, *shape)} and "
        f"whole-numbered labels {(hi - lo,)}, got {got}; mend the dataset, say by np.asarray(images, np.{kind})"
    )


def _described(value: object) -> str:
    """Return a short description of a value."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape}"
    if isinstance(value, list | tuple) and len(value) > 4:
        return f"a {type(value).__name__} of {len(value)}"
    text = repr(value)
    return text if len(text) <= 60 else f"a {type(value).__name__}"


def _is_whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _counts(value: object, lengths: tuple[int, ...]) -> bool:
    return isinstance(value, list | tuple) and len(value) in lengths and all(_is_whole(n) and n > 0 for n in value)


def _is_crop(crop: Any, shape: Any) -> bool:
    return _counts(crop, (2,)) and len(shape) == 3 and all(n <= m for n, m in zip(crop, shape[1:], strict=True))


def _is_row(row: Any, n: int, least: float) -> bool:
    """Return True if ``row`` has ``n`` finite numbers above ``least``."""
    try:
        array = np.asarray(row)
    except ValueError:  # lists of different lengths
        return False
    return array.shape == (n,) and array.dtype.kind in "iuf" and bool(np.isfinite(array).all() and array.min() > least)
