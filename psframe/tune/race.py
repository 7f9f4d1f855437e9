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
LEAST_ROUNDS = 3  # of a comparison
SURE_ROUNDS = 6  # from here on an interval is one of 95 % and more
EARLY, SURE = 1.10, 1.01  # least lower bounds that end a way's race, before and after these rounds
EQUAL, NEGLIGIBLE = 1.02, 1.01  # ratios below which ways may be equally fast, and are whatever the interval
PROBING = 0.5  # share of a race's time for its first steps
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
    probe : float
        Seconds a sample of the first steps; 0 before them.
    stretch_s : float
        Expected seconds of a stretch.
    phases : dict of str to list of float
        Mean worker's seconds a sample in each phase, by round.
    failed : str
        Why it cannot be trained; "" if it can.
    """

    way: Way
    n_steps: int = PROBE_STEPS
    seconds: dict[int, float] = field(default_factory=dict)
    probe: float = 0.0
    phases: dict[str, list[float]] = field(default_factory=dict)
    stretch_s: float = STRETCH_S
    failed: str = ""

    @property
    def middle(self) -> float:
        """Median seconds a sample; those of the probe if it was in no round."""
        return median(self.seconds.values()) if self.seconds else self.probe

    def calm(self, since: int) -> float:
        """Return the lower quartile of the seconds a sample after a round: what disturbs only makes slower."""
        return _quartile([seconds for number, seconds in self.seconds.items() if number > since], self.probe)


def _quartile(seconds: Sequence[float], otherwise: float) -> float:
    """Return the lower quartile; ``otherwise`` without any."""
    return sorted(seconds)[len(seconds) // 4] if seconds else otherwise


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
        self.round = self.since = 0  # rounds of all races, and those before this one
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
        self.since = self.round
        runners = self._probed([*dict.fromkeys([*ways, *always])], always)
        for number in range(1, n_rounds + 1):
            if not self._round(runners):
                break
            runners = self._without_losers(runners, number, keep, always)
            if number >= SURE_ROUNDS and self._are_equal([e for e in runners if e.way not in always]):
                break
        ranked = sorted((e for e in runners if not e.failed), key=self._calm)
        self._leave([e for e in ranked[keep:] if e.way not in always])
        return ranked[:keep]

    def _calm(self, entry: Entry) -> float:
        return entry.calm(self.since)

    def ratio(self, a: Way, b: Way) -> Interval | None:
        """Return the ratio of a's seconds to b's over the rounds of both; None without any."""
        first, second = self.entries[a].seconds, self.entries[b].seconds
        logs = [log(first[number] / second[number]) for number in first if number in second]
        return interval(logs) if logs else None

    def is_equal(self, a: Way, b: Way) -> bool:
        """True if a may be as fast as b: by the undisturbed quarter of their rounds, and by all of them.

        So it may where noise alone parts them, and most rounds say that a is the faster one.
        """
        first, second = self.entries[a].seconds, self.entries[b].seconds
        both = [number for number in first if number in second]
        calm = _quartile([first[n] for n in both], 1.0) / _quartile([second[n] for n in both], 1.0)
        ratio = self.ratio(a, b)
        if ratio is None:
            return False
        may_be = ratio.low <= 1.0
        return (calm < EQUAL and (may_be or ratio.middle < NEGLIGIBLE)) or (may_be and ratio.middle <= 1.0)

    def _probed(self, ways: Sequence[Way], always: Sequence[Way]) -> list[Entry]:
        """Build new ways and train a few steps of each; return all but those that are hopeless, or fail."""
        new, reserved_s = [], (1 - PROBING) * self.left_s()
        for way in ways:
            entry = self.entries.setdefault(way, Entry(way))
            if not entry.probe and not entry.failed:
                if self.left_s() <= reserved_s:
                    self.out_of_time = True
                    break
                self._probe(entry)
                new.append(entry)
        probed = [self.entries[way] for way in ways if way in self.entries and self.entries[way].probe]
        least = min((entry.probe for entry in probed), default=0.0)
        for entry in [e for e in new if e.probe > HOPELESS * least]:
            if again := self._stretch(entry):  # the first one may have been disturbed
                entry.probe = min(entry.probe, again["seconds"] / again["samples"])
        hopeless = [e for e in new if e.probe > HOPELESS * least and e.way not in always]
        self._leave(hopeless)
        return [e for e in probed if not e.failed and e not in hopeless]

    def _probe(self, entry: Entry) -> None:
        """Train the first steps of a way, and set the steps of its stretches."""
        entry.n_steps = 1
        if not (first := self._stretch(entry)):  # it warms caches and pages
            return
        entry.n_steps = PROBE_STEPS if first["seconds"] < LONG_STEP_S else 1
        if probe := self._stretch(entry):
            entry.probe = probe["seconds"] / probe["samples"]
            step_s = probe["seconds"] / entry.n_steps
            entry.n_steps = max(entry.n_steps, ceil(STRETCH_S / step_s))
            entry.stretch_s = entry.n_steps * step_s

    def _stretch(self, entry: Entry) -> dict[str, Any] | None:
        """Train a stretch of a way; None if it fails, with which it leaves."""
        try:
            return self.train(entry.way, entry.n_steps)
        except UserError as error:
            entry.failed = str(error).splitlines()[0]
            self._leave([entry])
            return None

    def _round(self, runners: list[Entry]) -> bool:
        """Train a stretch of each; False if there is no time for it, or nobody to race."""
        if self.left_s() <= sum(entry.stretch_s for entry in runners):
            self.out_of_time = True
            return False
        self.round += 1
        for entry in self.random.sample(runners, len(runners)):
            stretch = self._stretch(entry)
            if stretch is None:
                runners.remove(entry)
                continue
            entry.seconds[self.round] = stretch["seconds"] / stretch["samples"]
            for phase, seconds in stretch["phases"].items():
                entry.phases.setdefault(phase, []).append(seconds / stretch["samples"])
        return bool(runners)

    def _without_losers(self, runners: list[Entry], number: int, keep: int, always: Sequence[Way]) -> list[Entry]:
        """Let those leave that are slower for sure, and at some rounds the slower half; return the others."""
        if number < LEAST_ROUNDS:
            return runners
        racing = sorted(runners, key=self._calm)
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
        return ratio.low if ratio and ratio.n >= LEAST_ROUNDS else 0.0

    def _are_equal(self, racing: list[Entry]) -> bool:
        """True if no way but the first could still turn out to be faster, or slower by much."""
        racing.sort(key=self._calm)
        ratios = [self.ratio(e.way, racing[0].way) for e in racing[1:]]
        return all(ratio and ratio.high < EQUAL for ratio in ratios)

    def _leave(self, losers: Sequence[Entry]) -> None:
        if losers:
            self.drop([entry.way for entry in losers])
