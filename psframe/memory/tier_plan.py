"""Plan of the tier that each tensor belongs in (:func:`best`): exact by an integer program, or greedy.

A step takes, for each tensor, the bytes that it moves there over the tier's bandwidth; the plan has the least sum of
these times whose tensors fit. A written byte counts twice, since a cache reads a line before it is written (write
allocation). Written data thus go first (as in Chandrasekar et al. 2017 on Knights Landing), and what is large and
seldom read goes last.
"""

import ctypes
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

import numpy as np

PAGE_BYTES = 4096  # the program's unit: of bytes the numbers would be too large for its tolerance
WRITE_COST = 2  # a line is read and written
MOST_NODES, MOST_S = 100_000, 10.0  # of the integer program's search, in which ranks wait
MOST_WEIGHT = 4  # of the slower tier's share of a split tensor: pages take turns in short rounds
#: parts of a tensor in the fastest tier, into which it does not fit as a whole, and in the next one
PARTS = ((7, 1), (3, 1), (1, 1), (1, 3), (1, 7), (1, 15))
PART_BYTES = 1 << 20  # smaller tensors have one tier: pages are too coarse for their parts


@dataclass(frozen=True)
class Item:
    """Tensor of all ranks that share memory.

    Attributes
    ----------
    place : str
        See :mod:`psframe.memory.tensor_names`.
    n_bytes : int
        Size in whole pages, on all of these ranks.
    read, written : int
        Bytes of a step.
    """

    place: str
    n_bytes: int
    read: int = 0
    written: int = 0

    @property
    def moved(self) -> int:
        """Bytes to and from memory."""
        return self.read + WRITE_COST * self.written


@dataclass(frozen=True)
class Tier:
    """Memory of one kind.

    Attributes
    ----------
    name : str
    gbps : float
        Bandwidth in GB/s.
    n_bytes : int
        Room.
    """

    name: str
    gbps: float
    n_bytes: int


@dataclass(frozen=True)
class Option:
    """Use of the tiers by one tensor: of all its bytes, a share in each, by weights.

    ``adds`` is True if the parts are taken to be moved at the same time.
    """

    weights: tuple[int, ...]
    adds: bool = False

    @property
    def tiers(self) -> list[int]:
        """The tiers that it has bytes in."""
        return [tier for tier, weight in enumerate(self.weights) if weight]

    def is_for(self, item: Item) -> bool:
        """Return True if the item is large enough for it."""
        return len(self.tiers) == 1 or item.n_bytes >= PART_BYTES

    def n_bytes(self, item: Item, tier: int) -> int:
        """Return an item's bytes in a tier, rounded up."""
        return -(-item.n_bytes * self.weights[tier] // sum(self.weights))

    def seconds(self, item: Item, tiers: Sequence[Tier]) -> float:
        """Return the time that an item's bytes take."""
        shares = [(self.weights[tier] / sum(self.weights), tiers[tier].gbps) for tier in self.tiers]
        return (max if self.adds else sum)(item.moved * share / (gbps * 1e9) for share, gbps in shares)


@dataclass(frozen=True)
class Plan:
    """Option of each item.

    Attributes
    ----------
    chosen : dict of str to Option
        By place.
    seconds : float
        Of a step.
    bound : float
        No plan takes less; ``seconds`` if this one is optimal.
    by : str
        Method: ``integer program`` or ``greedy``.
    """

    chosen: dict[str, Option]
    seconds: float
    bound: float
    by: str

    @property
    def distance(self) -> float:
        """Share of the time that a better plan may save at most."""
        return max(0.0, 1 - self.bound / self.seconds) if self.seconds else 0.0


def options(tiers: Sequence[Tier], splits: bool) -> list[Option]:
    """Return the options: each tier alone, the fastest first; parts in the first two; with ``splits``, neighbours.

    These are in proportion to their bandwidths.
    """
    n = len(tiers)

    def of(weights: Mapping[int, int], adds: bool = False) -> Option:
        return Option(tuple(weights.get(k, 0) for k in range(n)), adds)

    found = [of({tier: 1}) for tier in range(n)]
    found += [of({0: a, 1: b}) for a, b in PARTS if n > 1]
    for fast, slow in pairwise(range(n)) if splits else ():
        ratio = Fraction(tiers[fast].gbps / tiers[slow].gbps).limit_denominator(MOST_WEIGHT)
        found.append(of({fast: ratio.numerator, slow: ratio.denominator}, adds=True))
    return found


def best(items: Sequence[Item], tiers: Sequence[Tier], splits: bool = False) -> Plan | None:
    """Return the plan with the least time, None if the items do not fit. The fastest tier comes first.

    Deterministic. With scipy it is optimal; without it, greedy.
    """
    idle = [item for item in items if not item.moved]
    slowest, size = tiers[-1], sum(item.n_bytes for item in idle)
    if idle and size <= slowest.n_bytes:  # these gain nothing anywhere, and leave fast memory to others
        left = [*tiers[:-1], Tier(slowest.name, slowest.gbps, slowest.n_bytes - size)]
        if (plan := _best([item for item in items if item.moved], left, splits)) is not None:
            last = options(tiers, False)[len(tiers) - 1]
            return replace(plan, chosen={**plan.chosen, **{item.place: last for item in idle}})
    return _best(items, tiers, splits)


def _best(items: Sequence[Item], tiers: Sequence[Tier], splits: bool) -> Plan | None:
    """Return the plan with the least time as far as scipy is installed."""
    choices = options(tiers, splits)
    try:
        from scipy.optimize import milp
    except ImportError:
        return greedy(items, tiers, choices)
    return _program(milp, items, tiers, choices) or greedy(items, tiers, choices)


def _program(milp: object, items: Sequence[Item], tiers: Sequence[Tier], choices: Sequence[Option]) -> Plan | None:
    """Return the optimal plan, by HiGHS (Huangfu and Hall 2018); None if it finds none."""
    from scipy.optimize import Bounds, LinearConstraint
    from scipy.sparse import lil_array

    n, k = len(items), len(choices)
    if not n:
        return Plan({}, 0.0, 0.0, "integer program")
    seconds = np.array([[option.seconds(item, tiers) for option in choices] for item in items])
    one, room = lil_array((n, n * k)), lil_array((len(tiers), n * k))
    for row, item in enumerate(items):
        for column, option in enumerate(choices, row * k):
            one[row, column] = 1
            for tier in option.tiers:
                room[tier, column] = option.n_bytes(item, tier) / PAGE_BYTES
    limits = [tier.n_bytes / PAGE_BYTES for tier in tiers]
    with _unheard():
        found = milp(  # type: ignore[operator]
            seconds.ravel() / (seconds.max() or 1),
            integrality=np.ones(n * k),
            bounds=Bounds(0, [option.is_for(item) for item in items for option in choices]),
            constraints=[LinearConstraint(one.tocsr(), 1, 1), LinearConstraint(room.tocsr(), -np.inf, limits)],
            options={"mip_rel_gap": 0, "node_limit": MOST_NODES, "time_limit": MOST_S},
        )
    if found.x is None:
        return None
    numbers = found.x.reshape(n, k).argmax(1)
    chosen = {item.place: choices[number] for item, number in zip(items, numbers, strict=True)}
    if not fits(items, tiers, chosen):  # by the program's tolerance
        return None
    total = float(sum(row[number] for row, number in zip(seconds, numbers, strict=True)))
    bound = total if found.status == 0 else min(total, float(found.mip_dual_bound) * float(seconds.max() or 1))
    return Plan(chosen, total, bound, "integer program")


@contextmanager
def _unheard() -> Iterator[None]:
    """Keep what C code writes to standard output from there: HiGHS leaves a line of its own whatever it is asked."""
    sys.stdout.flush()
    before, nowhere = os.dup(1), os.memfd_create("unheard")
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        ctypes.CDLL(None).fflush(None)  # C has a buffer of its own
        os.dup2(before, 1)
        os.close(before)
        os.close(nowhere)


def greedy(items: Sequence[Item], tiers: Sequence[Tier], choices: Sequence[Option]) -> Plan | None:
    """Return a plan in which what gains most by byte of a fast tier goes there first; None if the items do not fit."""
    left, chosen = [tier.n_bytes for tier in tiers], dict[str, Option]()
    slowest = choices[len(tiers) - 1]
    gains = [
        ((slowest.seconds(item, tiers) - option.seconds(item, tiers)) / max(1, item.n_bytes), -number, -rank)
        for rank, item in enumerate(items)
        for number, option in enumerate(choices)
        if option.is_for(item)
    ]
    for _, number, rank in sorted(gains, reverse=True):
        item, option = items[-rank], choices[-number]
        sizes = {tier: option.n_bytes(item, tier) for tier in option.tiers}
        if item.place not in chosen and all(size <= left[tier] for tier, size in sizes.items()):
            chosen[item.place] = option
            for tier, size in sizes.items():
                left[tier] -= size
    if len(chosen) < len(items):
        packed = _packed(items, tiers, choices)
        if packed is None:
            return None
        chosen = packed
    total = sum(chosen[item.place].seconds(item, tiers) for item in items)
    return Plan(chosen, total, min(total, _bound(items, tiers, choices)), "greedy")


def _packed(items: Sequence[Item], tiers: Sequence[Tier], choices: Sequence[Option]) -> dict[str, Option] | None:
    """Return a plan in which the largest item goes where most room is left; None if they do not fit so either."""
    left, chosen = [tier.n_bytes for tier in tiers], {}
    for item in sorted(items, key=lambda item: -item.n_bytes):
        tier = max(range(len(tiers)), key=lambda number: left[number])
        left[tier] -= item.n_bytes
        chosen[item.place] = choices[tier]
    return chosen if min(left) >= 0 else None


def fits(items: Sequence[Item], tiers: Sequence[Tier], chosen: dict[str, Option]) -> bool:
    """Return True if no tier has more bytes than room."""
    return all(
        sum(chosen[item.place].n_bytes(item, number) for item in items) <= tier.n_bytes
        for number, tier in enumerate(tiers)
    )


def _bound(items: Sequence[Item], tiers: Sequence[Tier], choices: Sequence[Option]) -> float:
    """Return a time that no plan goes below: items may be divided, and all tiers but the first have room for all."""
    fast = [option for option in choices if option.weights[0]]
    slow = [option for option in choices if not option.weights[0]] or fast
    total, left, gains = 0.0, float(tiers[0].n_bytes), []
    for item in items:
        base = min(option.seconds(item, tiers) for option in slow if option.is_for(item))
        total += base
        able = [option for option in fast if option.is_for(item)]
        least = min(option.n_bytes(item, 0) for option in able)  # an item needs no more than this of the first tier
        gains.append((base - min(option.seconds(item, tiers) for option in able), least))
    for gain, size in sorted(gains, key=lambda pair: pair[0] / max(1, pair[1]), reverse=True):
        share = min(1.0, left / size) if size else 1.0
        total, left = total - max(0.0, gain) * share, left - size * share
    return total
