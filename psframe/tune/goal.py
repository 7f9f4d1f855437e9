"""Search for the settings that reach a target first (:class:`GoalSearch`): real runs, of which the worse half leaves.

Trials of proposed settings (``psframe.tune.proposals``) train for equal seconds, a rung at a time, and go on from their
checkpoints. The half with the better metric stays (successive halving, Jamieson and Talwalkar 2016). No trial trains
longer than the fastest one took to the target. The last ones are repeated with other seeds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil
from statistics import median

from psframe.config.tuned import BATCH
from psframe.errors import UserError
from psframe.tune.proposals import Proposals
from psframe.tune.way import Way

RUNGS = (0.25, 0.5, 1.0)  # shares of the seconds of the config as it is
FINALISTS, SEEDS = 3, (1, 2)  # beside the config's own seed

OUT_OF_TIME = "the budget has ended the search"

Curve = list[tuple[float, float]]  #: seconds of training, and the metric, at the end of each epoch


@dataclass
class Trial:
    """A run of some settings with some seed.

    Attributes
    ----------
    number : int
    way : Way
    seed : int or None
        None for the config's own.
    curve : Curve
    failed : str
        Why it has ended before its time; "" if it has not.
    is_over : bool
        True once it has trained all epochs of the config.
    is_cut : bool
        True if the budget has stopped it.
    """

    number: int
    way: Way
    seed: int | None = None
    curve: Curve = field(default_factory=list)
    failed: str = ""
    is_over: bool = False
    is_cut: bool = False

    @property
    def seconds(self) -> float:
        """Seconds of training so far."""
        return self.curve[-1][0] if self.curve else 0.0

    def reached_s(self, target: float) -> float | None:
        """Return the seconds to the end of the first epoch with the target; None if it was not reached."""
        return next((seconds for seconds, value in self.curve if value >= target), None)

    def best(self, seconds: float) -> float:
        """Return the best value of the epochs begun in the first ``seconds``: a trial ends its last one."""
        begun = [0.0, *(at for at, _ in self.curve)]
        ended = zip(begun, self.curve, strict=False)
        return max((value for begin, (_, value) in ended if begin < seconds), default=float("-inf"))


class OutOfTime(Exception):
    """The budget leaves no time for a trial."""


#: trains a trial on until its target or to so many seconds; returns its curve, and whether the budget has stopped it
#: before; raises UserError if it fails, OutOfTime if it cannot begin
TrainTrial = Callable[[Trial, float], tuple[Curve, bool]]


@dataclass
class Found:
    """Outcome of a search for a target.

    Attributes
    ----------
    best, plain : Way
        The best settings, and the config's own.
    seconds : dict of Way to list
        Seconds to the target of each seed, None where it was not reached, of the ways that were repeated.
    trials : list of Trial
        All, in the order in which they began.
    """

    best: Way
    plain: Way
    seconds: dict[Way, list[float | None]]
    trials: list[Trial]


class GoalSearch:
    """Search for the settings that reach a target first.

    Parameters
    ----------
    proposals : Proposals
        Settings to try beside the config's own.
    target : float
        Value to reach of what a curve has; larger is better.
    train : callable
        See :data:`TrainTrial`.
    tell : callable
        Called with a line of progress.
    """

    def __init__(
        self,
        proposals: Proposals,
        target: float,
        train: TrainTrial,
        tell: Callable[[str], None],
    ):
        self.proposals, self.target, self.train, self.tell = proposals, target, train, tell
        self.trials: list[Trial] = []

    def run(self) -> Found:
        """Search; return the outcome. UserError if the config itself fails."""
        plain = self.proposals.plain
        first = self._begin(plain)
        self.tell(f"trial 1: {plain.label}, until it reaches the target")
        self._go_on(first, float("inf"))
        if first.failed:
            raise UserError(first.failed)
        whole_s = first.reached_s(self.target) or first.seconds
        racing = self._proposed(RUNGS[0] * whole_s)
        for share in RUNGS[1:]:
            racing = racing[: ceil(len(racing) / 2)]
            racing = self._rung(racing, share * whole_s)
        return self._repeated(first)

    def _proposed(self, limit_s: float) -> list[Trial]:
        """Train what is proposed for so many seconds each; return the trials, the best first."""
        trials = {self.trials[0].way: self.trials[0]}
        self.tell(f"other settings, to {limit_s:.3g} s of training each")
        while (way := self.proposals.ask()) is not None:
            if way not in trials:
                trials[way] = self._begin(way)
            self._go_on(trials[way], self._limit_s(limit_s))
            if trials[way].failed == OUT_OF_TIME:
                break
            self.proposals.tell(self._worth(trials[way], limit_s))
        return self._ranked([*trials.values()][1:], limit_s)

    def _rung(self, trials: Sequence[Trial], limit_s: float) -> list[Trial]:
        """Train trials on to so many seconds each; return them, the best first."""
        self.tell(f"{len(trials)} trials, to {limit_s:.3g} s of training each")
        for trial in trials:
            self._go_on(trial, self._limit_s(limit_s))
        return self._ranked(trials, limit_s)

    def _begin(self, way: Way, seed: int | None = None) -> Trial:
        self.trials.append(Trial(len(self.trials) + 1, way, seed))
        return self.trials[-1]

    def _go_on(self, trial: Trial, seconds: float) -> None:
        """Train a trial to so many seconds, unless it is there, or there is no time left."""
        if trial.failed or trial.is_over or trial.seconds >= seconds or trial.reached_s(self.target) is not None:
            return
        try:
            trial.curve, trial.is_cut = self.train(trial, seconds)
            trial.is_over = trial.seconds < seconds and not trial.is_cut
        except OutOfTime:
            trial.failed = OUT_OF_TIME
        except UserError as error:
            trial.failed = str(error).splitlines()[0]

    def _limit_s(self, limit_s: float) -> float:
        """Return ``limit_s``, or less where a trial has reached the target sooner."""
        return min([limit_s, *(s for t in self.trials if (s := t.reached_s(self.target)) is not None)])

    def _ranked(self, trials: Sequence[Trial], seconds: float) -> list[Trial]:
        """Return those that have not failed, the best first."""
        return sorted((t for t in trials if not t.failed), key=lambda t: -self._worth(t, seconds))

    def _worth(self, trial: Trial, limit_s: float) -> float:
        """Return a number that is more for who reaches the target sooner, and less for others, by their metric."""
        if trial.failed:
            return float("-inf")
        best, reached = trial.best(limit_s), trial.reached_s(self.target)
        return self.target + limit_s / reached if reached and best >= self.target else best

    def _repeated(self, first: Trial) -> Found:
        """Repeat the best trials with other seeds; return the outcome."""
        reached = sorted((s, t.number) for t in self.trials if (s := t.reached_s(self.target)))
        fastest = [self.trials[number - 1] for _, number in reached[:FINALISTS]]
        finalists = [t for t in fastest if t is not first] + [first]
        self.tell(f"{len(finalists)} settings, with {len(SEEDS)} more seeds")
        seconds: dict[Way, list[float | None]] = {t.way: [t.reached_s(self.target)] for t in finalists}
        longest_s = 2 * max(first.seconds, *(t.seconds for t in finalists))
        for seed in SEEDS:
            for finalist in finalists:
                trial = self._begin(finalist.way, seed)
                self._go_on(trial, longest_s)
                reached_s = trial.reached_s(self.target)
                # one that diverges does not reach it; of one for which no time was left nothing is known
                if reached_s is not None or not (trial.is_cut or trial.failed == OUT_OF_TIME):
                    seconds[trial.way].append(reached_s)
        best = min(seconds, key=lambda way: (median(float("inf") if s is None else s for s in seconds[way]), way.label))
        return Found(best, first.way, seconds, self.trials)


def _overlap(best: Sequence[float | None], plain: Sequence[float | None]) -> bool:
    slowest = max(float("inf") if s is None else s for s in best)
    return min(float("inf") if s is None else s for s in plain) <= slowest


def text(found: Found, goal: str) -> str:
    """Return the outcome as text for a terminal; ``goal`` is the target in words."""
    lines = [f"seconds of training to {goal}, by seed:"]
    for way in sorted(found.seconds, key=lambda way: way is not found.best):
        told = ", ".join("not reached" if s is None else f"{s:.3g}" for s in found.seconds[way])
        mark = " (the config, on the fastest way)" if way == found.plain else ""
        batch = f" {BATCH}={way.batch_size}" if way.batch_size is not None else ""
        lines.append(f"  {told}: {way.label}{batch}{mark}")
    if found.best == found.plain:
        lines.append("note: no other settings that were tried were faster to the target")
    elif _overlap(found.seconds[found.best], found.seconds[found.plain]):
        lines.append("note: the seeds' seconds overlap with those of the config: they may be no better")
    lines += [f"note: trial {t.number}, {t.way.label}: {t.failed}" for t in found.trials if t.failed]
    return "\n".join(lines)
