"""Plan of the tier that each tensor belongs in (:func:`best`): exact by an integer program, or greedy.

The plan has the least sum of the times of :mod:`psframe.memory.tier_options` whose tensors fit in each phase of a step.
Written data thus go first (as in Chandrasekar et al. 2017 on Knights Landing), and what is large and seldom read goes
last.
"""

import ctypes
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from psframe.memory.tier_options import Item, Option, Tier, options

PAGE_BYTES = 4096  # the program's unit: of bytes the numbers would be too large for its tolerance
#: of the integer program's search, in which ranks wait
SEARCH = {"mip_rel_gap": 0, "node_limit": 100_000, "time_limit": 10.0}
MOST_TRIES = 10  # of a program whose plan does not fit
LARGEST = 1e4  # number for the longest time in the program, whose search ends at an absolute gap of 1e-6


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


def best(items: Sequence[Item], tiers: Sequence[Tier], splits: bool = False, move_gbps: float = 0.0) -> Plan | None:
    """Return the plan with the least time, None if the items do not fit. The fastest tier comes first.

    Deterministic. With scipy it is optimal; without it, greedy, and nothing moves in a step.

    Parameters
    ----------
    splits : bool
        True if a tensor may lie in two tiers, in proportion to their bandwidths.
    move_gbps : float
        GB/s at which pages go from tier to tier while others compute: what moves in a step must not take longer than
        the plan's step. 0 if nothing may move.
    """
    idle = [item for item in items if not item.moved]
    slowest, size = tiers[-1], sum(item.n_bytes for item in idle)
    if idle and size <= slowest.n_bytes:  # these gain nothing anywhere, and leave fast memory to others
        left = [*tiers[:-1], Tier(slowest.name, slowest.gbps, slowest.n_bytes - size)]
        if (plan := _best([item for item in items if item.moved], left, splits, move_gbps)) is not None:
            last = options(tiers, False)[len(tiers) - 1]
            return replace(plan, chosen={**plan.chosen, **{item.place: last for item in idle}})
    return _best(items, tiers, splits, move_gbps)


def _best(items: Sequence[Item], tiers: Sequence[Tier], splits: bool, move_gbps: float) -> Plan | None:
    """Return the plan with the least time as far as scipy is installed."""
    try:
        from scipy.optimize import milp
    except ImportError:
        return greedy(items, tiers, options(tiers, splits))
    still = _program(milp, items, tiers, options(tiers, splits), 0.0) or greedy(items, tiers, options(tiers, splits))
    if not move_gbps or not any(item.window for item in items):
        return still
    moving = _program(milp, items, tiers, options(tiers, splits, True), move_gbps)
    if moving and (still is None or moving.seconds <= still.seconds):
        return moving
    # the search has ended early: no plan beats all tensors in the fastest tier
    return still and replace(still, bound=sum(item.moved for item in items) / tiers[0].gbps / 1e9)


def _program(
    milp: Any, items: Sequence[Item], tiers: Sequence[Tier], choices: Sequence[Option], move_gbps: float
) -> Plan | None:
    """Return the optimal plan, by HiGHS (Huangfu and Hall 2018); None if it finds none."""
    from scipy.optimize import Bounds, LinearConstraint

    n, k = len(items), len(choices)
    if not n:
        return Plan({}, 0.0, 0.0, "integer program")
    seconds = np.array([[option.seconds(item, tiers) for option in choices] for item in items])
    unit = float(seconds.max() or 1)
    cost = unit / LARGEST
    constraints = _constraints(items, tiers, choices)
    if move_gbps:
        on_the_way = [[option.bytes_on_the_way(item) for option in choices] for item in items]
        spare = (seconds - np.array(on_the_way) / (move_gbps * 1e9)) / unit
        constraints.append(LinearConstraint(spare.reshape(1, -1), 0, np.inf))
    bounds = Bounds(0, [option.is_for(item) for item in items for option in choices])
    for _ in range(MOST_TRIES):
        with _unheard():
            found = milp(seconds.ravel() / cost, integrality=1, bounds=bounds, constraints=constraints, options=SEARCH)
        if found.x is None:
            return None
        numbers = found.x.reshape(n, k).argmax(1)
        chosen = {item.place: choices[number] for item, number in zip(items, numbers, strict=True)}
        if fits(items, tiers, chosen):
            total = float(sum(row[number] for row, number in zip(seconds, numbers, strict=True)))
            bound = total if found.status == 0 else min(total, float(found.mip_dual_bound) * cost)
            return Plan(chosen, total, bound, "integer program")
        # it fits by the program's tolerance alone, a millionth of the room: anything but that
        taken = (np.arange(n * k) % k == np.repeat(numbers, k)).astype(float)
        constraints.append(LinearConstraint(taken.reshape(1, -1), -np.inf, n - 1))
    return None


def _constraints(items: Sequence[Item], tiers: Sequence[Tier], choices: Sequence[Option]) -> list[Any]:
    """Return the constraints that each item has an option, and each tier room for what lies there."""
    from scipy.optimize import LinearConstraint
    from scipy.sparse import csr_array

    room, limits = _room(items, tiers, choices)
    one_each = np.kron(np.eye(len(items)), np.ones(len(choices)))
    return [
        LinearConstraint(csr_array(one_each), 1, 1),
        LinearConstraint(csr_array(room / PAGE_BYTES), -np.inf, limits / PAGE_BYTES),
    ]


def _room(items: Sequence[Item], tiers: Sequence[Tier], choices: Sequence[Option]) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes of items and options in each tier, (n_rows, n_items * n_options), and the limits.

    Phases of a step that differ have rows of their own.
    """
    columns = [(item, option) for item in items for option in choices]
    moving = [(at, item, option) for at, (item, option) in enumerate(columns) if option.moves and option.is_for(item)]
    every, limits = list[np.ndarray](), list[int]()
    for number, tier in enumerate(tiers):
        row = np.array([option.n_bytes(item, number) for item, option in columns], float)
        rows: list[np.ndarray] = []
        for phase in changes(items) if moving else (0,):
            of_phase = row.copy()
            for column, item, option in moving:
                of_phase[column] = option.n_bytes(item, number, phase)
            if not any(np.array_equal(of_phase, other) for other in rows):
                rows.append(of_phase)
        every += rows
        limits += [tier.n_bytes] * len(rows)
    return np.array(every), np.array(limits, float)


def changes(items: Sequence[Item]) -> list[int]:
    """Return the phases of a step in which a tensor may come or go, and the first one."""
    windows = [item.window for item in items if item.window]
    edges = {edge for w in windows for used in (w.between, w.within) for edge in (used.start, used.stop)}
    return sorted({0} | {edge for edge in edges if 0 < edge < max(w.n_phases for w in windows)})


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


def fits(items: Sequence[Item], tiers: Sequence[Tier], chosen: Mapping[str, Option]) -> bool:
    """Return True if no tier has more bytes than room in any phase."""
    return all(
        sum(chosen[item.place].n_bytes(item, number, phase) for item in items) <= tier.n_bytes
        for number, tier in enumerate(tiers)
        for phase in changes(items)
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
