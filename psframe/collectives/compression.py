"""Compression of gradients (:class:`Compressed`): a wrapper around any collective that moves bytes with MPI.

Payloads are decoded and summed in the order of the workers' numbers, so that all modes and carriers give the same bits
with the same codec. With a server, gradients are encoded on their way to it, and parameters return unencoded. An
allreduce encodes twice, as in Seide et al. 2014: every worker receives one encoded segment from all, encodes the sum of
it, and receives the encoded sums of the others. A codec with error feedback has separate residuals for the two. Between
few nodes, each node receives the payloads of all others instead, which are encoded once.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from psframe import compiled
from psframe.collectives.base import BaseCollective, Segments, cut
from psframe.collectives.carriers import Carrier
from psframe.collectives.codecs import TABLE, Codec
from psframe.config import registry
from psframe.errors import UserError, nearest
from psframe.memory.allocator import Allocator
from psframe.memory.arena import ONE_COPY, Arena, Keeping, Layout
from psframe.record.trace import UNTRACED, Trace
from psframe.record.traffic import Traffic

MakeCodec = Callable[[int], Codec]


def codec_maker(spec: str | Mapping[str, Any], allocator: Allocator) -> MakeCodec:
    """Return the factory of codecs by vector length; UserError if the config names no codec."""
    plain = {"name": spec} if isinstance(spec, str) else spec
    if "name" not in plain:
        raise UserError(f"collective.compression must name a codec, got {spec!r}; {nearest('', TABLE)}")
    choice = registry.bind("collective.compression", TABLE, plain)

    def allocate(n: int, dtype: str) -> np.ndarray:
        return allocator.zeros(n, dtype, "exchange")

    return lambda size: choice(size, allocate)


def warm(spec: str | Mapping[str, Any]) -> None:
    """Compile a codec, or load it from Numba's cache."""
    codec, zeros = codec_maker(spec, Allocator())(64), np.zeros(64, np.float32)
    payload = np.zeros(codec.n_bytes, np.uint8)
    codec.encode(zeros, payload)
    codec.add(payload, zeros)


def forget(codec: Codec) -> None:
    """Set non-finite numbers in a codec's residual to 0: error feedback would repeat them in every step."""
    residual = getattr(codec, "residual", None)
    if residual is not None:
        np.nan_to_num(residual, copy=False, nan=0, posinf=0, neginf=0)


class CompressedSum:
    """In-place sum of the vectors (S,) of all ranks of a communicator: reduce-scatter and all-gather, both encoded."""

    def __init__(self, carrier: Carrier, size: int, make: MakeCodec, allocator: Allocator, traffic: Traffic):
        n, rank = carrier.comm.size, carrier.comm.rank
        self.carrier, self.traffic = carrier, traffic
        self.parts = [cut(size, n, part) for part in range(n)]
        self.mine = self.parts[rank]
        self.codecs = [make(part.stop - part.start) for part in self.parts]
        self.of_sum = make(self.mine.stop - self.mine.start)
        self.every_codec = [*self.codecs, self.of_sum]
        self.counts = [codec.n_bytes for codec in self.codecs]
        ends = np.cumsum([0, *self.counts])
        self.out = allocator.zeros(int(ends[-1]), np.uint8, "exchange")
        self.every = allocator.zeros(int(ends[-1]), np.uint8, "exchange")
        self.slots = [slice(int(begin), int(end)) for begin, end in pairwise(ends)]
        self.rows = allocator.zeros((n, self.counts[rank]), np.uint8, "exchange")

    def __call__(self, vector: np.ndarray) -> None:
        n, rank = self.carrier.comm.size, self.carrier.comm.rank
        for part, codec, slot in zip(self.parts, self.codecs, self.slots, strict=True):
            codec.encode(vector[part], self.out[slot])
        self.carrier.all_to_all(self.out, self.counts, self.rows)
        self._count(sum(self.counts) - self.counts[rank], (n - 1) * self.counts[rank])
        total = vector[self.mine]
        total[:] = 0
        for row in self.rows:
            self.codecs[rank].add(row, total)
        self.of_sum.encode(total, self.every[self.slots[rank]])
        self.carrier.all_gather(self.every, self.counts)
        self._count((n - 1) * self.counts[rank], sum(self.counts) - self.counts[rank])
        vector[:] = 0
        for part, codec, slot in zip(self.parts, self.codecs, self.slots, strict=True):
            codec.add(self.every[slot], vector[part])

    def _count(self, sent: int, received: int) -> None:
        self.traffic.send(sent)
        self.traffic.receive(received)


class GatheredSum:
    """The same sum, with the payloads of all ranks gathered on every rank."""

    def __init__(self, carrier: Carrier, size: int, make: MakeCodec, allocator: Allocator, traffic: Traffic):
        self.carrier, self.traffic, self.codec = carrier, traffic, make(size)
        self.every_codec = [self.codec]
        self.rows = allocator.zeros((carrier.comm.size, self.codec.n_bytes), np.uint8, "exchange")

    def __call__(self, vector: np.ndarray) -> None:
        n, n_bytes = self.rows.shape
        self.codec.encode(vector, self.rows[self.carrier.comm.rank])
        self.carrier.all_gather(self.rows.reshape(-1), [n_bytes] * n)
        self.traffic.send((n - 1) * n_bytes)
        self.traffic.receive((n - 1) * n_bytes)
        vector[:] = 0
        for row in self.rows:
            self.codec.add(row, vector)


def sum_between_nodes(
    carrier: Carrier, size: int, spec: str | Mapping[str, Any], allocator: Allocator, traffic: Traffic
) -> CompressedSum | GatheredSum:
    """Return the sum of vectors (S,) over the ranks of ``carrier``: that of fewest bytes, or that which encodes once.

    The latter for two ranks, where both send the same, and if all payloads are at most an eighth of the vector.
    """
    n, n_bytes = carrier.comm.size, codec_maker(spec, Allocator())(size).n_bytes
    kind = GatheredSum if n == 2 or (n - 1) * n_bytes <= 4 * size // 8 else CompressedSum
    return kind(carrier, size, codec_maker(spec, allocator), allocator, traffic)


class Compressed(BaseCollective):
    """Collective with encoded gradients.

    Parameters
    ----------
    inner : BaseCollective
        The wrapped collective, which broadcasts the parameters.
    spec : str or mapping
        The codec's name, or its name and keys.
    carrier : Carrier
        Moves the encoded gradients.
    """

    def __init__(self, inner: BaseCollective, spec: str | Mapping[str, Any], carrier: Carrier):
        super().__init__(inner._team, inner._size, inner._allocator, "fixed_workers" if inner._canonical else "none")
        self.inner, self.traffic, self._spec, self.carrier = inner, inner.traffic, spec, carrier
        self.traits, self.gaps = replace(inner.traits, exact=False), list[slice]()
        make, rank = codec_maker(spec, inner._allocator), self._comm.rank
        if not self._team.server:
            self.sum = CompressedSum(self.carrier, self._size, make, inner._allocator, self.traffic)
            return
        self.codec = make(self._size)
        self.payload = inner._allocator.zeros(self.codec.n_bytes, np.uint8, "exchange")
        if rank == 0:
            self.rows = inner._allocator.zeros((self._comm.size - 1, self.codec.n_bytes), np.uint8, "exchange")
            self.total = inner._allocator.zeros(self._size, np.float32, "exchange")
            self.mean = compiled.elementwise.Mean([self.total])
        else:
            self.rows = self.payload  # nothing is received there

    def arena(self, layout: Layout, n_state: int, keeping: Keeping = ONE_COPY, trace: Trace = UNTRACED) -> Arena:
        self.gaps = layout.gaps()
        return super().arena(layout, n_state, keeping, trace)

    def warm(self) -> None:
        warm(self._spec)

    def broadcast(self, params: np.ndarray) -> None:
        self.inner.broadcast(params)

    def gather_mean(self, grads: np.ndarray, divisor: int) -> Segments:
        if self._team.worker is not None:
            self.codec.encode(grads, self.payload)
        self.carrier.gather(self.payload, self.rows)
        if self._comm.rank:
            self.traffic.send(len(self.payload))
            return
        self.traffic.receive(self.rows.nbytes)
        self.total[:] = 0
        for row in ([self.payload] if self._team.worker is not None else []) + list(self.rows):
            self.codec.add(row, self.total)
        yield slice(0, self._size), self.mean.over(divisor)

    def nonfinite_workers(self, grads: np.ndarray) -> list[int]:
        if self._team.server:
            return super().nonfinite_workers(grads)
        return [] if self.finite else [self._comm.rank]

    def forget(self) -> None:
        for codec in [self.codec] if self._team.server else self.sum.every_codec:
            forget(codec)

    def allreduce_mean(self, grads: np.ndarray, divisor: int) -> Segments:
        self.finite = compiled.elementwise.is_finite(grads)  # the sum overwrites them
        self.sum(grads)
        for gap in self.gaps:  # a codec may decode zeros to other values, which would enter the next sum, and grow
            grads[gap] = 0
        yield slice(0, self._size), compiled.elementwise.Mean([grads]).over(divisor)
