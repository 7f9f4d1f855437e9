"""Tensors of random numbers, shapes and strides, which every rank can make from the words that name them."""

import random
from dataclasses import dataclass
from math import prod
from zlib import crc32

import numpy as np
import torch

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
COMPLEX = (torch.complex64, torch.complex128)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
DTYPES = (*FLOATS, *COMPLEX, torch.bool, *INTEGERS)

KB = 1024
FEW = (0, 1, 1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 31, 64, 100, 257, 1000)
#: bytes near which implementations go other ways, and how many elements more or less
EDGES, BESIDE = (4 * KB, 32 * KB, 64 * KB, 128 * KB, 256 * KB, 512 * KB), (-3, -1, 0, 1, 5, 16)
MANY = (300_007, 500_000, 1_000_003)

JUNK = 0xA5  # in bytes that nobody has written
INPUT_KINDS = ("plain", "plain", "plain", "offset", "permuted", "every second", "narrow", "channels_last", "expanded")
OUTPUT_KINDS = INPUT_KINDS[:-1]
SPECIAL = (float("nan"), float("inf"), float("-inf"), -0.0, 0.0, "smallest", "below normal", "largest")


def draw_numel(rng: random.Random, dtype: torch.dtype, most_bytes: int) -> int:
    """Return how many elements: mostly few, at times near an edge, seldom very many."""
    among = rng.choices(("few", "edge", "many"), (12, 5, 1))[0]
    if among == "few":
        numel = rng.choice(FEW)
    elif among == "edge":
        numel = rng.choice(EDGES) // dtype.itemsize + rng.choice(BESIDE)
    else:
        numel = rng.choice(MANY)
    return numel if numel * dtype.itemsize <= most_bytes else rng.choice(FEW)


def draw_shape(rng: random.Random, numel: int) -> tuple[int, ...]:
    """Return a shape of up to four dimensions with about so many elements."""
    if numel == 0:
        return rng.choice([(0,), (3, 0), (0, 4), (2, 0, 5)])
    if numel == 1 and rng.random() < 0.5:
        return ()
    before = [rng.randint(1, 5) for _ in range(rng.choice((0, 0, 1, 2, 3)))]
    return (*before, max(1, numel // prod(before)))


def numbers(seed: str, shape: tuple[int, ...], dtype: torch.dtype, special: bool = False) -> torch.Tensor:
    """Return what the words ``seed`` name: the same numbers wherever they are asked for.

    Floats are of many magnitudes, so that the order of a sum matters; with ``special`` some are such as NaN.
    """
    rng, numel = np.random.default_rng(crc32(seed.encode())), prod(shape)
    if not numel:
        return torch.empty(shape, dtype=dtype)
    if dtype is torch.bool:
        return torch.from_numpy(rng.integers(0, 2, numel, dtype=np.uint8)).bool().view(shape)
    if dtype in INTEGERS:
        raw = rng.integers(0, 256, numel * dtype.itemsize, dtype=np.uint8)
        return torch.from_numpy(raw).view(dtype).view(shape)
    if dtype in COMPLEX:
        real = torch.float32 if dtype is torch.complex64 else torch.float64
        return torch.view_as_complex(numbers(seed, (*shape, 2), real, special))
    found = torch.from_numpy(rng.standard_normal(numel, dtype=np.float32)).to(dtype)
    scales = torch.tensor([0.01, 1.0, 1.0, 30.0], dtype=dtype)
    found *= scales[torch.from_numpy(rng.integers(0, 4, numel))]
    if dtype is torch.float64:
        found += torch.from_numpy(rng.standard_normal(numel)) * 1e-9
    if special:
        info = torch.finfo(dtype)
        names = {"smallest": info.smallest_normal, "below normal": info.smallest_normal / 8, "largest": info.max}
        for at in rng.integers(0, numel, 1 + min(numel // 3, 40)):
            value = SPECIAL[rng.integers(0, len(SPECIAL))]
            found[at] = names.get(value, value)
    return found.view(shape)


@dataclass
class Placed:
    """A tensor within other memory: a view, and all of the storage around it as it was before."""

    view: torch.Tensor
    base: torch.Tensor
    before: torch.Tensor

    def kept_around(self) -> bool:
        """Whether nothing has been written beside the view."""
        now = self.before.clone()
        _as(now, self.view).copy_(self.view)
        return torch.equal(_raw(now), _raw(self.base))

    def kept(self) -> bool:
        """Whether nothing has been written at all."""
        return torch.equal(_raw(self.before), _raw(self.base))


def _as(base: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
    return torch.as_strided(base, view.shape, view.stride(), view.storage_offset())


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor in the order of its elements."""
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype)  # a view of one element may have any stride
    return flat.copy_(tensor.detach().reshape(-1)).view(torch.uint8)


def layout(shape: tuple[int, ...], dtype: torch.dtype, kind: str) -> torch.Tensor:
    """Return a tensor of junk with the strides that ``kind`` names; where they are of no use, plain ones."""

    def junk(*sizes: int) -> torch.Tensor:
        made = torch.full((prod(sizes) * dtype.itemsize,), JUNK, dtype=torch.uint8)
        return (made.view(dtype) if dtype is not torch.bool else made.zero_().view(dtype)).view(sizes)

    if kind == "offset":
        return junk(prod(shape) + 8)[5 : 5 + prod(shape)].view(shape)
    if kind == "permuted" and len(shape) > 1:
        return junk(*reversed(shape)).permute(*reversed(range(len(shape))))
    if kind == "every second" and shape:
        return junk(*shape[:-1], 2 * shape[-1] + 1)[..., 1::2]
    if kind == "narrow" and shape:
        wide = junk(shape[0] + 3, *shape[1:-1], *([shape[-1] + 2] if len(shape) > 1 else []))
        return wide[1 : 1 + shape[0], ..., 1:-1] if len(shape) > 1 else wide[1 : 1 + shape[0]]
    if kind == "channels_last" and len(shape) == 4:
        n, c, h, w = shape
        return junk(n, h, w, c).permute(0, 3, 1, 2)
    return junk(*shape)


def place(values: torch.Tensor, kind: str) -> Placed:
    """Return a copy of numbers with the strides of ``kind``; of ``expanded``, see ``as_expanded``."""
    if kind == "expanded" and values.dim():
        made = values.select(0, 0).clone().unsqueeze(0).expand(values.shape) if values.shape[0] else values.clone()
    else:
        made = layout(tuple(values.shape), values.dtype, kind)
        made.copy_(values)
    return _placed(made)


def blank(shape: tuple[int, ...], dtype: torch.dtype, kind: str) -> Placed:
    """Return memory for a result."""
    return _placed(layout(shape, dtype, kind))


def as_expanded(values: torch.Tensor, kind: str) -> torch.Tensor:
    """Return numbers as they are where the first dimension is one row again and again."""
    if kind == "expanded" and values.dim() and values.shape[0]:
        return values[:1].expand(values.shape).contiguous()
    return values


def _placed(view: torch.Tensor) -> Placed:
    storage = torch.empty(0, dtype=view.dtype).set_(view.untyped_storage())
    return Placed(view, storage, storage.clone())
