"""Axes: positions of values (:class:`Scale`), and of their ticks (:func:`place`)."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor, log

from psframe.report.values import seconds

APART = 0.12  # least distance between two texts, as a share of an axis


@dataclass(frozen=True)
class Axis:
    """Description of an axis.

    Attributes
    ----------
    title : str
        Title with its unit.
    base : float
        Base of a logarithmic axis; 0 for a linear one.
    zero : bool
        True if a linear axis begins at 0.
    say : callable
        The text of a tick; None: the number itself.
    whole : bool
        True if ticks are integers only.
    shared : sequence of float
        Values that the axis must hold besides those drawn, so that adjacent figures can be compared.
    """

    title: str
    base: float = 0
    zero: bool = True
    say: Callable[[float], str] | None = None
    whole: bool = False
    shared: Sequence[float] = ()


@dataclass(frozen=True)
class Scale:
    """An axis with positions: ``low`` lies at ``start``, ``high`` at ``end``."""

    axis: Axis
    low: float
    high: float
    start: float
    end: float
    ticks: tuple[tuple[float, str], ...]

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.axis.base:
            value, low, high = (log(max(v, 1e-18), self.axis.base) for v in (value, low, high))
        return self.start + (value - low) / (high - low) * (self.end - self.start)


def place(axis: Axis, values: Iterable[float], start: float, end: float, most: int = 6) -> Scale:
    """Return the scale that holds all values, with at most about ``most`` ticks."""
    held = [*values, *axis.shared]
    if axis.base:
        return _log(axis, [v for v in held if v > 0] or [1.0], start, end, most)
    low, high = min(held, default=0.0), max(held, default=1.0)
    if axis.zero:
        low, high = min(0.0, low), max(0.0, high)
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        low, high = (low - abs(low) / 20, high + abs(high) / 20) if low else (0.0, 1.0)
    step = _step((high - low) / max(1, most - 1))
    step = max(1.0, step) if axis.whole else step
    first = floor(low / step + 1e-9)
    last = ceil(high / step - 1e-9)
    ticks = [k * step for k in range(first, last + 1)]
    say = axis.say or (lambda value: f"{value:,.{_places(step)}f}" if 1e-7 < step < 1e9 else f"{value:.3g}")
    return Scale(axis, ticks[0], ticks[-1], start, end, tuple((t, say(t)) for t in ticks))


def _step(rough: float) -> float:
    """Return the next of 1, 2, 5, 10, 20, ..."""
    power = 10.0 ** floor(log(rough, 10))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))


def _places(step: float) -> int:
    return max(0, -floor(log(step, 10) + 1e-9))


def _log(axis: Axis, values: Sequence[float], start: float, end: float, most: int) -> Scale:
    base = axis.base
    low, high = min(values), max(values)
    first, last = floor(log(low, base) + 1e-9), ceil(log(high, base) - 1e-9)
    stride = max(1, ceil((last - first) / most))
    say = axis.say or (lambda value: f"{value:,.0f}" if value >= 1 else f"{value:g}")
    powers = [base**k for k in range(first, last + 1)]
    if base == 2:  # ranks: the largest measured number is seldom a power of two
        high = high if high > low else 2 * low
        ticks = [t for t in powers if low * 0.999 <= t <= high * 1.001][::stride]
        low, high = low / 1.12, high * 1.12
    else:
        candidates = [power * factor for power in [powers[0] / base, *powers] for factor in (1, 2, 5)]
        low = max((t for t in candidates if t <= low * 1.001), default=powers[0])
        high = min((t for t in candidates if t >= high * 0.999 and t > low), default=10 * powers[-1])
        decades = [t for t in powers if low * 0.999 <= t <= high * 1.001][::stride]
        finer = [t for t in candidates if low * 0.999 <= t <= high * 1.001]
        ends = [t for t in (low, high) if all(abs(log(t / d, high / low)) > APART for d in decades)]
        ticks = sorted({*ends, *decades}) if len(finer) > 7 else finer
    return Scale(axis, low, high, start, end, tuple((t, say(t)) for t in ticks))


def time_axis(title: str, shared: Sequence[float] = ()) -> Axis:
    """Return a logarithmic axis of seconds."""
    return Axis(title, base=10, say=seconds, shared=shared)


def ranks_axis(counts: Iterable[float], title: str = "ranks") -> Axis:
    """Return an axis of counts: logarithmic if they span more than a factor of 16."""
    held = [n for n in counts if n > 0]
    far = held and max(held) > 16 * min(held)
    return Axis(f"{title} (log scale)" if far else title, base=2 if far else 0, whole=True)
