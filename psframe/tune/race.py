"""Race of ways to train (:class:`Race`): rounds of short stretches, after which those that cannot win leave.

In a round each way trains a stretch, in random order: what disturbs the machine disturbs all alike, and ways are
compared round by round. Rounds are paired blocks, and halving is that of Jamieson and Talwalkar (2016).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil, log
from random import Random
from statistics import median
from typing import Any

from psframe.errors import UserError
from psframe.tune.intervals import Interval, interval
from psframe.tune.way import Way

STRETCH_S = 0.2  # aim of a stretch: many time slices of the kernel, and short against what disturbs
HOPELESS = 2.5  # ratio to the best probe beyond which a way is not raced: no noise makes that of a good one
PROBE_STEPS = 2
LONG_STEP_S = 1.0  # a step that takes longer is a stretch by itself
SURE_ROUNDS = 6  # from here on an interval is one of 95 % and more
EARLY, SURE = 1.10, 1.01  # least lower bounds that end a way's race, before and after these rounds
EQUAL = 1.02  # upper bound below which two ways are equally fast
HALVINGS = (4, 8, 16)  # rounds after which the slower half leaves

Train = Callable[[Way, int], dict[str, Any]]


@dataclass
class Entry:
    """A way in the race.

    Attributes
    ----------
    n_steps : int
        Steps of its stretches.
    seconds : dict of int to float
        Seconds a sample, by round.
    phases : dict of str to list of float
        Mean worker's seconds a sample in each phase, by round.
    failed : str
        Why it cannot be trained; "" if it can.
    """

    way: Way
    n_steps: int = PROBE_STEPS
    seconds: dict[int, float] = field(default_factory=dict)
    phases: dict[str, list[float]] = field(default_factory=dict)
    failed: str = ""

    @property
    def middle(self) -> float:
        """Median seconds a sample."""
        return median(self.seconds.values())

    @property
    def calm(self) -> float:
        """Lower quartile of the seconds a sample: what disturbs a machine only makes it slower."""
        ordered = sorted(self.seconds.values())
        return ordered[len(ordered) // 4]


class Race:
    """Races among ways, with all that was measured.

    Parameters
    ----------
    train : callable
        ``train(way, n_steps)`` trains a stretch, and returns its ``samples``, ``seconds`` and ``phases``. Raises
        UserError if the way cannot be trained.
    drop : callable
        Called with ways that have left.
    left_s : callable
        Seconds that remain.
    seed : int
        Of the order within rounds.
    """

    def __init__(
        self, train: Train, drop: Callable[[list[Way]], None], left_s: Callable[[], float], seed: int = 0
    ) -> None:
        self.train, self.drop, self.left_s, self.random = train, drop, left_s, Random(seed)
        self.entries: dict[Way, Entry] = {}
        self.round = 0
        self.out_of_time = False

    def run(self, ways: Sequence[Way], n_rounds: int, keep: int, always: Sequence[Way] = ()) -> list[Entry]:
        """Race until ``n_rounds`` rounds are over or all that remain are equal; return these, the fastest first.

        Parameters
        ----------
        keep : int
            Ways that halving leaves at least, and that remain at most.
        always : sequence of Way
            Ways that never leave.
        """
        runners = self._probed([*dict.fromkeys([*ways, *always])], always)
        for number in range(1, n_rounds + 1):
            if not self._round(runners):
                break
            runners = self._without_losers(runners, number, keep, always)
            if number >= SURE_ROUNDS and self._are_equal([e for e in runners if e.way not in always]):
                break
        ranked = sorted((e for e in runners if e.seconds), key=lambda e: e.calm)
        self._leave([e for e in ranked[keep:] if e.way not in always])
        return ranked[:keep]

    def ratio(self, a: Way, b: Way) -> Interval | None:
        """Return the ratio of a's seconds to b's over the rounds of both; None without any."""
        first, second = self.entries[a].seconds, self.entries[b].seconds
        logs = [log(first[number] / second[number]) for number in first if number in second]
        return interval(logs) if logs else None

    def _probed(self, ways: Sequence[Way], always: Sequence[Way]) -> list[Entry]:
        """Build new ways and train a few steps of each; return all but those that are hopeless, or fail."""
        rates: dict[Way, float] = {}
        for way in ways:
            entry = self.entries.setdefault(way, Entry(way))
            if entry.seconds or entry.failed:
                continue
            if self.left_s() <= 0:
                self.out_of_time = True
                break
            try:
                probe = self.train(way, 1)  # the first step warms caches and pages
                entry.n_steps = PROBE_STEPS if probe["seconds"] < LONG_STEP_S else 1
                probe = self.train(way, entry.n_steps)
            except UserError as error:
                entry.failed = str(error)
                continue
            rates[way] = probe["seconds"] / probe["samples"]
            entry.n_steps = max(entry.n_steps, ceil(STRETCH_S / probe["seconds"] * entry.n_steps))
        least = min(rates.values(), default=0.0)
        for way in [w for w, rate in rates.items() if rate > HOPELESS * least]:
            probe = self.train(way, self.entries[way].n_steps)  # once more: it may have been disturbed
            rates[way] = min(rates[way], probe["seconds"] / probe["samples"])
        hopeless = [self.entries[w] for w, rate in rates.items() if rate > HOPELESS * least and w not in always]
        for entry in hopeless:
            entry.seconds[0] = rates[entry.way]  # round 0 has nothing to pair
        self._leave(hopeless)
        tried = (self.entries[way] for way in ways if way in self.entries)
        return [e for e in tried if not e.failed and e not in hopeless and (e.seconds or e.way in rates)]

    def _round(self, runners: list[Entry]) -> bool:
        """Train a stretch of each; False if there is no time for it, or nobody to race."""
        if self.left_s() <= len(runners) * STRETCH_S:
            self.out_of_time = True
            return False
        self.round += 1
        for entry in self.random.sample(runners, len(runners)):
            try:
                stretch = self.train(entry.way, entry.n_steps)
            except UserError as error:
                entry.failed = str(error)
                runners.remove(entry)
                continue
            entry.seconds[self.round] = stretch["seconds"] / stretch["samples"]
            for phase, seconds in stretch["phases"].items():
                entry.phases.setdefault(phase, []).append(seconds / stretch["samples"])
        return bool(runners)

    def _without_losers(self, runners: list[Entry], number: int, keep: int, always: Sequence[Way]) -> list[Entry]:
        """Let those leave that are slower for sure, and at some rounds the slower half; return the others."""
        racing = sorted(runners, key=lambda e: e.calm)
        if number < 3:
            return runners
        least = SURE if number >= SURE_ROUNDS else EARLY
        losers = [e for e in racing[1:] if self._bound(e, racing[0]) > least]
        if number in HALVINGS:
            left = [e for e in racing if e not in losers and e.way not in always]
            losers += left[max(keep, ceil(len(left) / 2)) :]
        losers = [e for e in losers if e.way not in always]
        self._leave(losers)
        return [e for e in runners if e not in losers]

    def _bound(self, entry: Entry, leader: Entry) -> float:
        ratio = self.ratio(entry.way, leader.way)
        return ratio.low if ratio and ratio.n >= 3 else 0.0

    def _are_equal(self, racing: list[Entry]) -> bool:
        """True if no way but the first could still turn out to be faster, or slower by much."""
        racing.sort(key=lambda e: e.calm)
        ratios = [self.ratio(e.way, racing[0].way) for e in racing[1:]]
        return all(ratio and ratio.high < EQUAL for ratio in ratios)

    def _leave(self, losers: Sequence[Entry]) -> None:
        if losers:
            self.drop([entry.way for entry in losers])
