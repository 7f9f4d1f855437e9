"""Outcome of a race (:class:`Outcome`): the best way, and the comparisons that show why."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from psframe.tune.intervals import Interval
from psframe.tune.race import LEAST_ROUNDS, SURE_ROUNDS, Entry, Race
from psframe.tune.way import Way

#: phases of a step, in words
PHASES = {"data": "loading", "compute": "computing", "wait": "waiting for others", "exchange": "exchange and update"}


@dataclass(frozen=True)
class Effect:
    """The worth of a setting: seconds with another value over those of the best way."""

    key: str
    value: str
    without: str
    ratio: Interval


Rival = tuple[Entry, Interval]  #: a way, and its seconds over those of the best


@dataclass(frozen=True)
class Outcome:
    """Outcome of a search.

    Attributes
    ----------
    best : Entry
        Of the ways that may be the fastest at the end of the race, one with the fewest settings.
    equals : list of Entry
        Others that may be as fast.
    rivals : list of Rival
        All others that were raced, the fastest first.
    runner_up : Rival or None
        The fastest that is slower for more than noise.
    effects : list of Effect
    plain : Interval or None
        Seconds of the config as it is over those of the best; None if that is the config.
    """

    best: Entry
    equals: list[Entry]
    rivals: list[Rival]
    runner_up: Rival | None
    effects: list[Effect]
    plain: Interval | None


def best(found: Sequence[Entry], race: Race, changes: Callable[[Way], int]) -> Entry:
    """Return the way with the fewest changes of those that may be the fastest; ``found`` are sorted by time."""
    tied = [(found[0], 1.0), *_tied(found, race, found[0])]
    return min(tied, key=lambda pair: (changes(pair[0].way), pair[1]))[0]


def _tied(entries: Sequence[Entry], race: Race, first: Entry) -> list[tuple[Entry, float]]:
    """Return the others that may be as fast as the first one, with their ratios to it."""
    ratios = [(e, race.ratio(e.way, first.way)) for e in entries if e is not first and race.is_equal(e.way, first.way)]
    return [(e, ratio.middle) for e, ratio in ratios if ratio]


def concluded(chosen: Entry, race: Race, plain: Way, own: Callable[[str, Way], Any]) -> Outcome:
    """Return the outcome of a race that has ended.

    Parameters
    ----------
    chosen : Entry
        The best way.
    plain : Way
        The config as it is.
    own : callable
        Returns the value of a key in a way without a setting of it.
    """
    raced = [e for e in race.entries.values() if not e.failed and e is not chosen]
    rivals = [(e, ratio) for e in raced if (ratio := race.ratio(e.way, chosen.way))]
    rivals.sort(key=lambda rival: rival[1].middle)
    equals = [e for e, _ in _tied(raced, race, chosen)]
    slower = [(e, ratio) for e, ratio in rivals if e not in equals and ratio.n >= LEAST_ROUNDS and ratio.middle > 1]
    return Outcome(
        chosen,
        equals,
        rivals,
        slower[0] if slower else None,
        [*_effects(race, chosen.way, own)],
        race.ratio(plain, chosen.way) if chosen.way != plain else None,
    )


def _effects(race: Race, chosen: Way, own: Callable[[str, Way], Any]) -> Iterator[Effect]:
    values = {"ranks": str(chosen.n_ranks), **dict(chosen.settings)}
    for key, value in values.items():
        for entry in race.entries.values():
            ratio = race.ratio(entry.way, chosen) if _differs_in(entry.way, chosen, key) else None
            if ratio and ratio.n >= SURE_ROUNDS:
                other = entry.way.n_ranks if key == "ranks" else own(key, chosen)
                yield Effect(key, value, str(other), ratio)


def _differs_in(way: Way, chosen: Way, key: str) -> bool:
    """Return True for the chosen way without a setting, or with other ranks alone."""
    if key == "ranks":
        return way.settings == chosen.settings and way.n_ranks != chosen.n_ranks
    return way.n_ranks == chosen.n_ranks and way.settings == chosen.without(key).settings != chosen.settings


def lost_by(rival: Entry, chosen: Entry) -> str:
    """Return the phases in which a rival takes longer or shorter than the chosen way, in words; "" if in none."""
    told = []
    for phase, words in PHASES.items():
        if phase in rival.phases and phase in chosen.phases:
            share = (median(rival.phases[phase]) - median(chosen.phases[phase])) / chosen.middle
            told += [f"{words} {100 * share:+.0f} %"] if abs(share) >= 0.005 else []
    return ", ".join(told)
