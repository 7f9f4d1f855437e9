"""Proposals of settings for a search for a target (:class:`Proposals`): combinations of values, or a sampler's."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import product
from random import Random
from typing import Any

from psframe.config.tuned import BATCH
from psframe.tune import space
from psframe.tune.space import Origin
from psframe.tune.way import Way

MAX_TRIALS = 24
FACTORS = {"optimizer.lr": (1.0, 0.5, 2.0, 4.0), BATCH: (1.0, 0.5, 2.0)}  # of the config's values


class Proposals(ABC):
    """Settings to try, one after the other.

    Parameters
    ----------
    origin : Origin
    plain : Way
        The config's own settings, on the fastest way.
    vary : mapping
        Keys with their values; those of :data:`FACTORS` are open without.

    Attributes
    ----------
    values : dict of str to list
        The values of each key that is open.
    """

    def __init__(self, origin: Origin, plain: Way, vary: Mapping[str, Sequence[Any] | None]):
        self.origin, self.plain = origin, plain
        self.values: dict[str, list[Any]] = {}
        any_workers = origin.config["train"]["reproducible"] == "any_workers"  # has no batch of a worker
        for key in dict.fromkeys([*(k for k in FACTORS if not (any_workers and k == BATCH)), *vary]):
            own = self._own(key)
            values = vary.get(key)
            if not values and isinstance(own, int | float):
                values = [*dict.fromkeys(type(own)(own * factor) for factor in FACTORS[key])]
            if values:
                self.values[key] = list(values)

    @abstractmethod
    def ask(self) -> Way | None:
        """Return the next settings; None once all have been proposed."""

    @abstractmethod
    def tell(self, worth: float) -> None:
        """Take in how good the last settings were; more is better, and -inf is for those that fail."""

    def way(self, settings: Mapping[str, Any]) -> Way:
        """Return the fastest way with these settings, of which the config's own are left out."""
        way = self.plain
        for key, value in settings.items():
            if key == BATCH:
                way = way.but(batch_size=max(1, value))
            elif value != self._own(key):
                way = way.having(key, value)
        return way.but(batch_size=None) if way.batch_size == self.origin.batch_size else way

    def _own(self, key: str) -> Any:
        if key == BATCH:
            return self.plain.batch_size or self.origin.batch_size
        return space.own(self.origin, key, {})


class Combinations(Proposals):
    """All combinations of the values, or a random choice of :data:`MAX_TRIALS` if they are more."""

    def __init__(self, origin: Origin, plain: Way, vary: Mapping[str, Sequence[Any] | None]):
        super().__init__(origin, plain, vary)
        combined = [dict(zip(self.values, values, strict=True)) for values in product(*self.values.values())]
        if len(combined) > MAX_TRIALS:  # Bergstra and Bengio (2012): better than a coarser grid
            combined = Random(0).sample(combined, MAX_TRIALS)
        self._left = iter(combined)

    def ask(self) -> Way | None:
        settings = next(self._left, None)
        return None if settings is None else self.way(settings)

    def tell(self, worth: float) -> None:
        pass
