"""Codecs: a gradient in fewer bytes than its float32 numbers take.

==========  =====================================  =================================================================
name        bytes of a payload                     what is lost
==========  =====================================  =================================================================
``fp16``    2 S                                    13 bits of the fraction, and magnitudes that a half has not
``bf16``    2 S                                    16 bits of the fraction
``onebit``  S / 8 and 8 a block, in whole words    all but the sign and two means a block; error feedback
``topk``    8 k, k = max(1, ceil(density S))       all but the k largest magnitudes; error feedback
==========  =====================================  =================================================================

With error feedback, what a payload lacks stays in a residual, which is added to the next gradient: it comes late, not
never. NaN and infinity come through, as one of them, so that a run that diverges is seen to. The same input gives the
same bits on any CPU, in IEEE operations whose order is written out; only which NaN a NaN is may differ.
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
    """Packs one vector of ``size`` numbers, step after step.

    Made as ``make(size, allocate, **yaml_keys)``. What it keeps comes from ``allocate``, all of it before the first
    step; the methods allocate nothing. Arrays are contiguous. Payloads of one kind may follow each other without a gap:
    their numbers stay aligned.

    Attributes
    ----------
    n_bytes : int
        Of every payload.
    """

    n_bytes: int

    def __init__(self, size: int, allocate: Allocate): ...

    def encode(self, x: np.ndarray, out: np.ndarray) -> None:
        """Write the payload of ``x`` (size,) float32 into all of ``out`` (n_bytes,) uint8.

        A codec with error feedback encodes x + residual, and keeps of that what the payload lacks.
        """

    def add(self, payload: np.ndarray, total: np.ndarray) -> None:
        """Add what ``payload`` (n_bytes,) uint8 says to ``total`` (size,) float32; of any codec made alike."""


class FP16:
    """IEEE halves, rounded to nearest even; finite numbers beyond 65504 are sent as 65504, with their sign."""

    def __init__(self, size: int, allocate: Allocate):
        self.n_bytes = 2 * size

    def encode(self, x: np.ndarray, out: np.ndarray) -> None:
        codec_loops.to_fp16(x.view(U32), out.view(U16))

    def add(self, payload: np.ndarray, total: np.ndarray) -> None:
        codec_loops.add_fp16(payload.view(U16), total)


class BF16:
    """The upper halves of float32, rounded to nearest even: beyond 3.39e38, to infinity."""

    def __init__(self, size: int, allocate: Allocate):
        self.n_bytes = 2 * size

    def encode(self, x: np.ndarray, out: np.ndarray) -> None:
        codec_loops.to_bf16(x.view(U32), out.view(U16))

    def add(self, payload: np.ndarray, total: np.ndarray) -> None:
        codec_loops.add_bf16(payload.view(U16), total)


class OneBit:
    """Signs, and two values a block, with error feedback: Seide et al. 2014, "1-Bit Stochastic Gradient Descent".

    Each number becomes the mean of the numbers of its sign in its block, which here takes the place of a column of
    the weights. A payload holds (mean of those >= 0, mean of the others) as float32 for each block, 0 for the mean
    of none, then bit i % 8 of byte i // 8 for number i, set where it is >= 0. The last bits fill a word of 32 with 0,
    so that payloads may lie one after the other. NaN counts as negative; what is not finite makes its mean so, and
    decodes to that from this step on, since it stays in the residual.
    """

    def __init__(self, size: int, allocate: Allocate, *, block: PositiveInt = 2048):
        self.block = min(block, max(size, 1))
        self.at = 8 * -(-size // self.block)  # where the bits begin
        self.n_bytes = self.at + 4 * -(-size // 32)
        self.residual = allocate(size, "float32")

    def encode(self, x: np.ndarray, out: np.ndarray) -> None:
        codec_loops.to_onebit(x, self.residual, self.block, out[: self.at].view(F32), out[self.at :].view(U32))

    def add(self, payload: np.ndarray, total: np.ndarray) -> None:
        codec_loops.add_onebit(payload[: self.at].view(U32), payload[self.at :].view(U32), self.block, total)


@cache
def _histogram() -> np.ndarray:
    """One for all codecs of a rank, which encode one after the other: an allreduce has a codec for every worker."""
    return np.zeros(1 << 16, np.int32)


class TopK:
    """The largest magnitudes, with error feedback: Aji and Heafield 2017, "Sparse communication for distributed
    gradient descent"; Lin et al. 2018, without their momentum correction; Strom 2015 has a threshold for the k.

    A payload holds k int32 indices, rising, then as many float32 values; of equal magnitudes the first are sent. NaN
    counts as larger than infinity, so that one at least is sent where there is any. UserError where indices do not fit.
    """

    def __init__(self, size: int, allocate: Allocate, *, density: Density = 0.01):
        if size >= 2**31:
            raise UserError(f"topk must choose from fewer than 2**31 parameters, got {size}; take another codec")
        self.k = max(1, ceil(density * size)) if size else 0
        self.at, self.n_bytes = 4 * self.k, 8 * self.k  # at: where the values begin
        self.residual = allocate(size, "float32")
        self.histogram = _histogram()

    def encode(self, x: np.ndarray, out: np.ndarray) -> None:
        codec_loops.to_topk(x, self.residual, self.histogram, out[: self.at].view(np.int32), out[self.at :].view(F32))

    def add(self, payload: np.ndarray, total: np.ndarray) -> None:
        codec_loops.add_topk(payload[: self.at].view(np.int32), payload[self.at :].view(F32), total)
