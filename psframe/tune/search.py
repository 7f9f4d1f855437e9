"""Search for the fastest way (:class:`Search`): broad choices in all combinations, then fine ones one at a time."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from psframe.config.schema import parse_value
from psframe.config.tuned import BATCH
from psframe.errors import UserError
from psframe.tune import outcome, space
from psframe.tune.outcome import Outcome
from psframe.tune.race import LEAST_ROUNDS, Entry, Race
from psframe.tune.space import Origin
from psframe.tune.way import Way

BROAD_ROUNDS, FINE_ROUNDS, LAST_ROUNDS, ABLATION_ROUNDS = 6, 8, 16, 6
BROAD_SHARE, FINE_SHARE, LAST_SHARE = 0.4, 0.75, 0.92  # of the time, at the end of each of these races
BROAD_KEPT, FINE_KEPT, LAST_KEPT = 4, 4, 3
MODE = "sync.mode"
HOPELESS = 3.0  # ratio of modelled seconds to the least beyond which a way is not raced
NEAR = 1.25  # ratio to the best broad way beyond which fine settings are not tried
BETTER = 0.99  # ratio below which a fine setting is taken into the combination of all that help

Ask = Callable[..., dict[str, Any]]


@dataclass(frozen=True)
class Request:
    """The request of a command: numbers of ranks (empty: by the machine's cores), and keys that it opens."""

    ranks: Sequence[int]
    vary: Mapping[str, Sequence[Any] | None]


def unknown(way: Way) -> float | None:
    """Return None: nothing is expected of a way."""
    return None


@dataclass
class Search:
    """Search among the ways of a config.

    Parameters
    ----------
    request : Request
    first : int
        Ranks of the config as it is: the first of the request, or a rank for each core.
    ask : callable
        ``ask(what, way, *given)`` returns a reply of ``psframe.tune.ranks``; UserError if it is refused.
    drop : callable
        Called with ways that are no longer needed.
    left_s : callable
        Seconds that remain.
    tell : callable
        Called with a line of progress.
    expected : callable, optional
        Modelled seconds of an epoch of a way, None if unknown: ways that are far slower are not raced.

    Attributes
    ----------
    plain : Way
        The config as it is.
    left_out : dict of str to int
        Ways that were not raced, by reason.
    """

    request: Request
    first: int
    ask: Ask
    drop: Callable[[list[Way]], None]
    left_s: Callable[[], float]
    tell: Callable[[str], None]
    expected: Callable[[Way], float | None] = unknown
    left_out: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.plain = Way(self.first)
        self.reserved_s = 0.0  # for the races behind this one
        self.race = Race(lambda way, n: self.ask("train", way, n), self.drop, lambda: self.left_s() - self.reserved_s)

    def look(self) -> None:
        """Learn of the config on this machine. UserError if it cannot be run."""
        try:
            self.origin = msgspec.convert(self.ask("look", self.plain), Origin)
        except msgspec.ValidationError as error:
            raise UserError(f"a search must have a sound journal, got another ({error}); give another --out") from None

    def run(self) -> Outcome:
        """Search, after :meth:`look`; return the outcome. UserError if the config itself cannot be run."""
        self.space, whole_s = space.opened(self.origin, self.request.vary), self.left_s()
        self.reserved_s = whole_s * (1 - BROAD_SHARE)
        broad = [self.plain, *self._hopeful(self._valid(self._broad()))]
        self.tell(f"{len(broad)} ways: {', '.join(['ranks', *self.space.broad])}")
        found = self.race.run(broad, BROAD_ROUNDS, BROAD_KEPT, [self.plain])
        if not found:
            failed = self.race.entries[self.plain].failed
            raise UserError(failed or "--budget must leave time for a step of each way, got too little; give more")
        self.reserved_s = whole_s * (1 - FINE_SHARE)
        if self.space.fine:
            found = self._fine([e for e in found if e.calm(self.race.since) < NEAR * found[0].calm(self.race.since)])
        self.reserved_s = whole_s * (1 - LAST_SHARE)
        self.tell(f"the last {len(found)}, and the config as it is")
        found = self.race.run([e.way for e in found], LAST_ROUNDS, LAST_KEPT, [self.plain])
        found += [e for e in [self.race.entries[self.plain]] if e not in found and not e.failed]
        self.reserved_s = 0.0
        best = self._sure(outcome.best(found, self.race, self.changes))
        if ablated := self._valid(self._ablated(best.way)):
            self.tell(f"the best without each of its {len(ablated)} setting(s)")
            self.race.run([best.way], ABLATION_ROUNDS, 1, ablated)
            raced = [self.race.entries[way] for way in ablated if way in self.race.entries]
            best = outcome.best([best, *(e for e in raced if not e.failed)], self.race, self.changes)
        return outcome.concluded(best, self.race, self.plain, self.own)

    def _sure(self, best: Entry) -> Entry:
        """Return the best way, or the config as it is where there was no time to compare the two."""
        if best.way == self.plain or self.race.entries[self.plain].failed:
            return best
        ratio = self.race.ratio(self.plain, best.way)
        return best if ratio and ratio.n >= LEAST_ROUNDS else self.race.entries[self.plain]

    def own(self, key: str, way: Way) -> Any:
        """Return the value that a key has in a way without a setting of it."""
        settings = {name: parse_value(value) for name, value in way.without(key).settings}
        return space.own(self.origin, key, settings)

    def changes(self, way: Way) -> int:
        """Return the number of differences from the config as it is."""
        return len(way.settings) + (way.n_ranks != self.plain.n_ranks)

    def _fine(self, found: list[Entry]) -> list[Entry]:
        """Race fine settings of the ways found, and the combination of those that make the fastest one faster."""
        variants = [*self._valid(v for e in found for v in self._one_at_a_time(e.way))]
        if not variants:
            return found
        self.tell(f"{len(variants)} more: {', '.join(self.space.fine)}")
        bases = [e.way for e in found]
        found = self.race.run([*bases, *variants], FINE_ROUNDS, FINE_KEPT, [self.plain])
        combined = [self._combined(base) for base in dict.fromkeys(self._base(e.way) for e in found)]
        if new := [way for way in combined if way is not None and way not in self.race.entries]:
            found = self.race.run([*(e.way for e in found), *new], FINE_ROUNDS, FINE_KEPT, [self.plain])
        return found

    def _broad(self) -> Iterator[Way]:
        for n_ranks in self.request.ranks or default_ranks(self.origin):
            for settings in space.combinations(self.origin, n_ranks, self.space.broad):
                way = Way(n_ranks)
                for key, value in settings.items():
                    way = way.having(key, value)
                yield way

    def _hopeful(self, ways: list[Way]) -> list[Way]:
        """Return the ways that may win as far as the model of the machine tells; count the others in ``left_out``."""
        expected = {way: seconds for way in (self.plain, *ways) if (seconds := self.expected(way)) is not None}
        least = min(expected.values(), default=0.0)
        slow = [way for way, seconds in expected.items() if seconds > HOPELESS * least and way != self.plain]
        if slow:
            self.left_out[f"the model of the machine expects over {HOPELESS:g} times the seconds of the best"] = len(
                slow
            )
        return [way for way in ways if way not in slow]

    def _one_at_a_time(self, way: Way) -> Iterator[Way]:
        """Yield the way with one fine setting, for each value that counts."""
        settings = {key: parse_value(value) for key, value in way.settings}
        get = space.getter(self.origin, way.n_ranks, settings)
        for key, values in self.space.fine.items():
            for value in values:
                if value not in (None, get(key)) and space.KNOBS[key].counts(self.origin, get, value):
                    yield way.having(key, value)

    def _base(self, way: Way) -> Way:
        """Return the way without fine settings."""
        for key in self.space.fine:
            way = way.without(key)
        return way

    def _combined(self, base: Way) -> Way | None:
        """Return the base with the best value of each fine key that makes it faster, if those are several."""
        best: dict[str, tuple[float, Way]] = {}
        for way in self._one_at_a_time(base):
            entry = self.race.entries.get(way.but(batch_size=base.batch_size))
            ratio = self.race.ratio(entry.way, base) if entry else None
            if entry and ratio and ratio.middle < BETTER:
                (key,) = dict(entry.way.settings).keys() - dict(base.settings).keys()
                best[key] = min(best.get(key, (1.0, entry.way)), (ratio.middle, entry.way), key=lambda pair: pair[0])
        if len(best) < 2:
            return None
        combined = base
        for key, (_, way) in best.items():
            combined = combined.having(key, parse_value(dict(way.settings)[key]))
        return combined

    def _ablated(self, winner: Way) -> Iterator[Way]:
        """Yield the winner without each of its settings, and on the config's own ranks."""
        for key, _ in winner.settings:
            yield winner.without(key).but(batch_size=None)
        if winner.n_ranks != self.plain.n_ranks:
            yield winner.but(n_ranks=self.plain.n_ranks, batch_size=None)

    def _valid(self, ways: Iterator[Way]) -> list[Way]:
        """Return the ways that train the same, each with its batch; count the others in ``left_out``."""
        new = [*dict.fromkeys(ways)]
        found = self.ask("workers", self.plain, *([way.overrides, way.n_ranks] for way in new))["found"] if new else []
        valid = []
        for way, answer in zip(new, found, strict=True):
            fitted = answer if isinstance(answer, str) else self._fitted(way, *answer)
            if isinstance(fitted, Way):
                valid.append(fitted)
            else:
                self.left_out[fitted] = self.left_out.get(fitted, 0) + 1
        return [way for way in dict.fromkeys(valid) if way != self.plain]

    def _fitted(self, way: Way, n_workers: int, same_each_step: bool) -> Way | str:
        """Return the way with the batch that leaves the global one as it is; why there is none, where there is none."""
        origin = self.origin
        if BATCH in dict(way.settings) or origin.config["train"]["reproducible"] == "any_workers":
            return way
        if n_workers == origin.n_workers:
            return way
        together = same_each_step and origin.same_each_step
        if not together or origin.own_statistics:
            kind = (
                "batch normalization" if together else f"sync.mode {dict(way.settings).get(MODE, origin.value(MODE))}"
            )
            return f"with {kind} another number of workers than {origin.n_workers} trains otherwise"
        if origin.global_batch % n_workers:
            return f"{origin.global_batch} samples of a step cannot be divided evenly among so many workers"
        return way.but(batch_size=origin.global_batch // n_workers)


def default_ranks(origin: Origin) -> list[int]:
    """Return numbers of ranks worth trying: all cores, a half and a quarter, each also with a rank that only serves."""
    cores = origin.cores * origin.n_nodes
    workers = sorted({max(1, cores // part) for part in (1, 2, 4)})
    return sorted({n for w in workers for n in (w, w + 1)})
