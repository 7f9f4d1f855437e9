"""Proposals by a sampler of Optuna (:class:`Sampled`), an extra: each learns from those before it."""

from collections.abc import Mapping, Sequence
from typing import Any

from psframe.errors import UserError
from psframe.tune.proposals import FACTORS, MAX_TRIALS, Proposals
from psframe.tune.space import Origin
from psframe.tune.way import Way

SPAN = 10.0  # a number without values is drawn from a tenth to ten times the config's
DIGITS = 3
AGAIN = 32  # draws in a row that were proposed before, behind which there is nothing new
FIRST = 8  # proposals drawn at random, before the sampler has something to go by


class Sampled(Proposals):
    """At most :data:`MAX_TRIALS` different proposals of a tree-structured Parzen estimator (Bergstra et al. 2011).

    The first one is the config as it is, if the values of the command have it. A learning rate without values is drawn
    from a range, by its logarithm. The same worths give the same proposals.

    Parameters
    ----------
    origin, plain, vary
        As of :class:`Proposals`.

    Raises
    ------
    UserError
        Optuna is not installed.
    """

    def __init__(self, origin: Origin, plain: Way, vary: Mapping[str, Sequence[Any] | None]):
        super().__init__(origin, plain, vary)
        optuna = load()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        sampler = optuna.samplers.TPESampler(seed=0, n_startup_trials=FIRST)
        self._study = optuna.create_study(sampler=sampler, direction="maximize")
        own = {key: self._own(key) for key in self.values}
        free = [key for key in own if key in FACTORS and not vary.get(key)]
        self._ranges = {key: own[key] for key in free if isinstance(own[key], float)}
        if all(key in self._ranges or own[key] in self.values[key] for key in own):
            self._study.enqueue_trial({key: self._ranges.get(key) or self.values[key].index(own[key]) for key in own})
        self._worths: dict[Way, float] = {}

    def ask(self) -> Way | None:
        for _ in range(AGAIN):
            if len(self._worths) == MAX_TRIALS:
                return None
            self._trial = self._study.ask()
            self._way = self.way({key: self._drawn(key) for key in self.values})
            if self._way not in self._worths:
                return self._way
            self.tell(self._worths[self._way])
        return None

    def _drawn(self, key: str) -> Any:
        if key in self._ranges:
            own = self._ranges[key]
            drawn = self._trial.suggest_float(key, own / SPAN, own * SPAN, log=True)
            return own if drawn == own else float(f"{drawn:.{DIGITS}g}")
        values = self.values[key]
        return values[self._trial.suggest_categorical(key, range(len(values)))]

    def tell(self, worth: float) -> None:
        self._worths[self._way] = worth
        self._study.tell(self._trial, worth)


def load() -> Any:
    """Return Optuna's module; raise UserError where it is not installed."""
    try:
        import optuna
    except ImportError:
        raise UserError("--sampler tpe needs Optuna, got none; pip install 'psframe[optuna]'") from None
    return optuna
