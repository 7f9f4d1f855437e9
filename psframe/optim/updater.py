"""Application of an optimizer to the segments of an arena that a rank updates (:class:`Updater`)."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from psframe import compiled
from psframe.config.average import Average
from psframe.errors import UserError
from psframe.memory.allocator import Allocator
from psframe.memory.arena import Arena
from psframe.memory.checksums import Checksums
from psframe.optim.average import rate
from psframe.optim.base import CompiledOptimizer, Optimizer
from psframe.record.clock import CLOCK
from psframe.record.trace import UNTRACED, Trace
from psframe.record.traffic import Traffic

BLOCK = 1 << 16  # parameters per call of a user's own optimizer


class Updater:
    """Application of an optimizer to segments of an arena, with its time and traffic.

    ``allocator`` is the source of memory that the updates of whole tensors need. ``average`` keeps an average of the
    parameters in the arena's last row of state.

    Attributes
    ----------
    update_s : float
        Seconds spent in updates, including the sums fused with them, since the owner last called :meth:`clear`.
    traffic : Traffic
        Bytes that these moved.
    first_nonfinite_step : int
        The first step whose mean gradient was not finite here, or 0.
    checksums : Checksums or None
        Checksums of written segments, verified on the next read; None without such checks.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        arena: Arena,
        checksums: Checksums | None = None,
        trace: Trace = UNTRACED,
        allocator: Allocator | None = None,
        average: Average | None = None,
    ):
        self.optimizer, self.arena, self.trace = optimizer, arena, trace
        self.checksums, self.average = checksums, average
        self.damaged = False
        self.ranges = optimizer.parts(arena.layout) if isinstance(optimizer, CompiledOptimizer) else None
        self.cuts = getattr(optimizer, "cuts", "anywhere")
        n = self._n_scratch()
        self.scratch = allocator.zeros(n, np.float32, "optimizer") if allocator and n else np.empty(n, np.float32)
        self._seen: set[tuple[int, int]] = set()  # segments that cut nothing which the optimizer needs whole
        self.update_s, self.traffic, self.first_nonfinite_step = 0.0, Traffic(), 0

    def clear(self) -> None:
        """Reset the counts."""
        self.update_s, self.first_nonfinite_step = 0.0, 0
        self.traffic.clear()

    def take_damage(self) -> bool:
        """Return True if a checksum has not matched since the last call."""
        damaged, self.damaged = self.damaged, False
        return damaged

    def __call__(self, segment: slice, gradient: Any, lr: float, step: int) -> None:
        """Update ``segment`` by its mean gradient: an array, or a ``compiled.elementwise.Mean`` not yet computed."""
        began = CLOCK.now()
        mean = compiled.elementwise.Mean([gradient]) if isinstance(gradient, np.ndarray) else gradient
        if self.cuts != "anywhere":
            self._check(segment)
        apply = self._apply_compiled if self.ranges is not None else self._apply_own
        if not apply(segment, mean, lr, step):
            self.first_nonfinite_step = self.first_nonfinite_step or step
            self.arena.nonfinite = self.arena.drops_unsound
        if self.checksums and not self.checksums.note(segment):
            self.damaged = self.arena.nonfinite = True
        n_bytes = (1 + self.arena.state.shape[0]) * 4 * mean.size  # bytes of parameters and state, read and written
        self.traffic.read += mean.n_rows * 4 * mean.size + n_bytes
        self.traffic.written += n_bytes + (2 * mean.size if self.arena.new_params_bf16 is not None else 0)
        self.update_s += CLOCK.now() - began
        if self.trace.on:
            self.trace.add("update", began)

    def _apply_compiled(self, segment: slice, mean: Any, lr: float, step: int) -> bool:
        arena = self.arena
        rule = self.optimizer.rule(lr, step)  # type: ignore[attr-defined]
        return mean.update(
            rule,
            arena.params[segment],
            arena.new_params[segment],
            arena.state[:, segment],
            arena.new_state[:, segment],
            self.checksums.scratch if self.checksums else None,
            self.ranges,
            segment.start or 0,
            None if arena.new_params_bf16 is None else arena.new_params_bf16[segment],
            self.scratch,
            rate(self.average, step) if self.average else None,
        )

    def _apply_own(self, segment: slice, mean: Any, lr: float, step: int) -> bool:
        """Update a segment by a user's own optimizer, which works in place; return True if the gradient is finite."""
        arena, finite = self.arena, True
        start, stop, _ = segment.indices(arena.layout.size)
        if self.checksums:
            self.checksums.read(segment, True)
        for piece in self._pieces(start, stop):
            gradient = self.scratch[: piece.stop - piece.start]
            finite &= mean.into(gradient, piece.start - start)
            params, state = arena.new_params[piece], arena.new_state[:, piece]
            if arena.new_params is not arena.params:
                params[:], state[:] = arena.params[piece], arena.state[:, piece]
            n = max(0, arena.layout.n_trained - piece.start)
            params[n:] -= gradient[n:]
            if n:
                self.optimizer.update(params[:n], gradient[:n], state[: self.optimizer.n_state, :n], lr, step)
            if self.average:
                _move(state[-1], params, np.float32(rate(self.average, step)), gradient)
        if arena.new_params_bf16 is not None:
            compiled.elementwise.narrow(arena.new_params[segment], arena.new_params_bf16[segment])
        if self.checksums:
            self.checksums.read(segment, False)
        return finite

    def _pieces(self, start: int, stop: int) -> Iterator[slice]:
        """Yield the slices of a segment for a user's own optimizer: blocks, tensors, or all of it."""
        if self.cuts == "tensors":
            for slot in self.arena.layout.slots.values():
                if start <= slot.start and slot.stop <= stop:
                    yield slice(slot.start, slot.stop)
            return
        for begin in range(start, stop, BLOCK if self.cuts == "anywhere" else max(1, stop - start)):
            yield slice(begin, min(begin + BLOCK, stop) if self.cuts == "anywhere" else stop)

    def _n_scratch(self) -> int:
        """Return how many numbers an update needs beside the arena, on a rank that updates."""
        layout = self.arena.layout
        if self.ranges is None:
            longest = max((slot.stop - slot.start for slot in layout.slots.values()), default=0)
            return {"anywhere": BLOCK, "nowhere": layout.size, "tensors": longest}[self.cuts]
        applies = len(self.arena.state) >= self.optimizer.n_state
        return self.ranges.longest if self.optimizer.by_tensor and applies else 0  # type: ignore[attr-defined]

    def _check(self, segment: slice) -> None:
        """Raise UserError if a segment cuts what the optimizer needs whole: a collective of a user's own may do so."""
        layout = self.arena.layout
        start, stop, _ = segment.indices(layout.size)
        if start == stop or (start, stop) in self._seen:
            return
        if self.cuts == "tensors":
            cut = [name for name, s in layout.slots.items() if s.start < start < s.stop or s.start < stop < s.stop]
        else:
            cut = [name for name, s in layout.slots.items() if s.start < start or s.stop > stop]
        if cut:
            raise UserError(
                f"a collective must not cut what {type(self.optimizer).__name__} needs whole, got numbers {start} to "
                f"{stop}, without all of {cut[0]}; cut by `size.cut`, or give collective=buffer"
            )
        self._seen.add((start, stop))


def _move(average: np.ndarray, params: np.ndarray, share: np.float32, room: np.ndarray) -> None:
    """Draw an average (S,) towards ``params`` by ``share``, with the bits of ``Mean.update``; overwrite ``room``."""
    if share == 1:
        average[:] = params
        return
    np.subtract(params, average, out=room)
    np.multiply(room, share, out=room)
    np.add(average, room, out=average)
