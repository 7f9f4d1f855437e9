"""Codecs (:class:`Codec`): gradients in fewer bytes than float32.

==========  =====================================  =================================================================
name        bytes of a payload                     loss
==========  =====================================  =================================================================
``fp16``    2 S                                    13 bits of the fraction, and magnitudes outside a half's range
``bf16``    2 S                                    16 bits of the fraction
``onebit``  S / 8 + 8 per block, in full words     all but the sign and two means per block; error feedback
``topk``    8 k, k = max(1, ceil(density S))       all but the k largest magnitudes; error feedback
==========  =====================================  =================================================================

With error feedback, the loss of a payload stays in a residual, which is added to the next gradient: it arrives late,
not never. NaN and infinity decode to one of the two, so that divergence is detected. The same input gives the same bits
on any CPU, since all IEEE operations have an explicit order; only the bits of a NaN may differ.
"""

from collections.abc import Callable
from functools import cache
from math import ceil
from typing import Annotated, Protocol

import msgspec
import numpy as np

from psframe.collectives import codec_loops
from psframe.config.registry import PositiveInt, Table
from psframe.errors import UserError

TABLE: Table = {
    "fp16": "psframe.collectives.codecs:FP16",
    "bf16": "psframe.collectives.codecs:BF16",
    "onebit": "psframe.collectives.codecs:OneBit",
    "topk": "psframe.collectives.codecs:TopK",
}

Allocate = Callable[[int, str], np.ndarray]  #: (n, dtype) -> zeroed array (n,)
Density = Annotated[float, msgspec.Meta(gt=0, le=1)]  #: in (0, 1]

U16, U32, F32 = np.uint16, np.uint32, np.float32


class Codec(Protocol):
    """Encoder and decoder of one vector of ``size`` numbers, step after step.

    Constructed as ``make(size, allocate, **yaml_keys)``. It allocates its memory from ``allocate`` before the first
    step; the methods allocate nothing. Arrays are contiguous. Payloads of one codec may follow each other without a
    gap: their numbers stay aligned.

    Attributes
    ----------
    n_bytes : int
        Bytes of every payload.
    """

    n_bytes: int

    def __init__(self, size: int, allocate: Allocate): ...

    def encode(self, x: np.ndarray, out: np.ndarray) -> None:
        """Write the payload of ``x`` (size,) float32 into all of ``out`` (n_bytes,) uint8.

        A codec with error feedback encodes x + residual, and keeps the encoding error as the new residual.
        """

    def add(self, payload: np.ndarray, total: np.ndarray) -> None:
        """Decode ``payload`` (n_bytes,) uint8 of any equal codec, and add it to ``total`` (size,) float32."""


class FP16:
    """IEEE halves, rounded to nearest even; finite magnitudes above 65504 become 65504, with their sign."""

    def __init__(self, size: int, allocate: Allocate):
        self.n_bytes = 2 * size

    def encode(self, x: np.ndarray, out: np.ndarray) -> None:
        codec_loops.to_fp16(x.view(U32), out.view(U16))

    def add(self, payload: np.ndarray, total: np.ndarray) -> None:
        codec_loops.add_fp16(payload.view(U16), total)


class BF16:
    """Upper halves of float32, rounded to nearest even; magnitudes above 3.39e38 become infinity."""

    def __init__(self, size: int, allocate: Allocate):
        self.n_bytes = 2 * size

    def encode(self, x: np.ndarray, out: np.ndarray) -> None:
        codec_loops.to_bf16(x.view(U32), out.view(U16))

    def add(self, payload: np.ndarray, total: np.ndarray) -> None:
        codec_loops.add_bf16(payload.view(U16), total)


class OneBit:
    """Signs, and two values per block, with error feedback: Seide et al. 2014, "1-Bit Stochastic Gradient Descent".

    Each number becomes the mean of the numbers of its sign in its block; the paper has columns of the weights instead
    of blocks. A payload holds (mean of those >= 0, mean of the others) as float32 for each block, 0 for an empty mean,
    then bit i % 8 of byte i // 8 for number i, set if it is >= 0. Zero bits fill the last 32-bit word, so that
    payloads may be contiguous. NaN counts as negative. A non-finite number makes its mean non-finite, in this and all
    later steps, since it stays in the residual.
    """

    def __init__(self, size: int, allocate: Allocate, *, block: PositiveInt = 2048):
        self.block = min(block, max(size, 1))
        self.at = 8 * -(-size // self.block)  # offset of the bits, in bytes
        self.n_bytes = self.at + 4 * -(-size // 32)
        self.residual = allocate(size, "float32")

    def encode(self, x: np.ndarray, out: np.ndarray) -> None:
        codec_loops.to_onebit(x, self.residual, self.block, out[: self.at].view(F32), out[self.at :].view(U32))

    def add(self, payload: np.ndarray, total: np.ndarray) -> None:
        codec_loops.add_onebit(payload[: self.at].view(U32), payload[self.at :].view(U32), self.block, total)


@cache
def _histogram() -> np.ndarray:
    """Return the one histogram of a rank: its codecs, of which an allreduce has one per worker, encode in turn."""
    return np.zeros(1 << 16, np.int32)


class TopK:
    """The largest magnitudes, with error feedback: Aji and Heafield 2017, "Sparse communication for distributed
    gradient descent"; Lin et al. 2018, without their momentum correction; Strom 2015 has a threshold instead of k.

    A payload holds k increasing int32 indices, then k float32 values; of equal magnitudes the first are sent. NaN
    counts as larger than infinity, so that at least one of them is sent. UserError if indices do not fit in int32.
    """

    def __init__(self, size: int, allocate: Allocate, *, density: Density = 0.01):
        if size >= 2**31:
            raise UserError(f"topk must choose from fewer than 2**31 parameters, got {size}; take another codec")
        self.k = max(1, ceil(density * size)) if size else 0
        self.at, self.n_bytes = 4 * self.k, 8 * self.k  # at: offset of the values, in bytes
        self.residual = allocate(size, "float32")
        self.histogram = _histogram()

    def encode(self, x: np.ndarray, out: np.ndarray) -> None:
        codec_loops.to_topk(x, self.residual, self.histogram, out[: self.at].view(np.int32), out[self.at :].view(F32))

    def add(self, payload: np.ndarray, total: np.ndarray) -> None:
        codec_loops.add_topk(payload[: self.at].view(np.int32), payload[self.at :].view(F32), total)
