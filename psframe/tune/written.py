"""Results of a search (:class:`Results`): ``tuned.yaml``, which runs as it is, figures in JSON, and text."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from psframe import __version__
from psframe.config import schema, short
from psframe.config.schema import to_yaml
from psframe.config.tuned import KEYS, Tuned
from psframe.errors import reason
from psframe.record import tuned as cache
from psframe.record.folder import chosen_file
from psframe.record.log import LOG
from psframe.record.view import aligned
from psframe.tune.goal import Found
from psframe.tune.outcome import Outcome, lost_by
from psframe.tune.race import LEAST_ROUNDS, Entry
from psframe.tune.search import Search
from psframe.tune.way import Way

TOP = 8  # rows of the table
CONFIG, FIGURES = "tuned.yaml", "tune.json"


@dataclass(frozen=True)
class Results:
    """Results of a search.

    Attributes
    ----------
    search : Search
    outcome : Outcome
    config : str
    overrides : sequence of str
        The command's.
    mpirun : str or None
        The launcher as it was given.
    out : Path
    """

    search: Search
    outcome: Outcome
    config: str
    overrides: Sequence[str]
    mpirun: str | None
    out: Path

    def command(self, way: Way) -> str:
        """Return the command that trains a way by ``tuned.yaml``."""
        return (
            f"{self.mpirun or 'mpirun'} -n {way.n_ranks} python -m psframe.train {shlex.quote(str(self.out / CONFIG))}"
        )

    def write(self, best: Way, found: Found | None = None, sign: int = 1) -> None:
        """Write ``tuned.yaml`` with the ``best`` way, and ``tune.json``. Raises OSError.

        Parameters
        ----------
        found : Found, optional
            Outcome of a search for a target.
        sign : int
            Of what its curves have, 1 or -1 times the metric.
        """
        origin, outcome = self.search.origin, self.outcome
        content = schema.content(self.config)  # as a whole: over a base, sections would merge where overrides replace
        for override in (*self.overrides, *best.overrides):
            short.override(content, override)
        head = [
            f"The fastest of {len(self.search.race.entries)} ways to train {self.config} (psframe tune {__version__}):",
            f"    {self.command(best)}",
            *(
                []
                if found
                else [f"{_rate(outcome.best):,.0f} samples/s, {_epoch_s(self.search, outcome.best):.4g} s an epoch"]
            ),
            *(
                [f"the config as it is on {self.search.plain.n_ranks} rank(s): {outcome.plain.told} seconds"]
                if outcome.plain
                else []
            ),
            f"on {origin.machine}, {origin.mpi}, {origin.n_nodes} node(s), {origin.global_batch} samples a step",
        ]
        head += [f"and of {len(found.trials)} trials, those settings that reached the target first"] if found else []
        with chosen_file(self.out / CONFIG, "w") as file:
            file.write("".join(f"# {line}\n" for line in head) + to_yaml(content))
        with chosen_file(self.out / FIGURES, "w") as file:
            file.write(json.dumps({**self.plain(), **_goal(found, sign)}, indent=1) + "\n")

    def keep(self) -> None:
        """Keep the fastest way on each number of ranks for ``tuned=auto``; warn on stderr if it cannot be.

        Ways with keys that the user has set, or that are none of tuning, are kept for nobody who did not ask for them.
        """
        origin, n_done = self.search.origin, set[int]()
        own = origin.batch_size if origin.config["train"]["reproducible"] != "any_workers" else None
        fixed = not origin.same_each_step or origin.own_statistics
        sure = [entry for entry, ratio in self.outcome.rivals if ratio.n >= LEAST_ROUNDS]
        for entry in (self.outcome.best, *sure):
            way = entry.way.but(batch_size=entry.way.batch_size or own)
            asked = [key for key, _ in way.settings if key not in KEYS or key in origin.set_keys]
            if way.n_ranks in n_done or asked:
                continue
            n_done.add(way.n_ranks)
            place = (origin.machine, origin.mpi, origin.n_nodes, origin.cores, way.n_ranks, origin.global_batch)
            n_workers = origin.n_workers if fixed else None
            try:
                cache.keep(origin.key, Tuned(*place, way.overrides, _rate(entry), n_workers))
            except OSError as error:
                LOG.warning(f"tuned=auto will not find this: {error.filename}: {reason(error)}")
                return

    def plain(self) -> dict[str, Any]:
        """Return the outcome for JSON."""
        search, outcome, origin = self.search, self.outcome, self.search.origin
        rows = [{**_row(outcome.best), "ratio": None}]
        rows += [{**_row(entry), "ratio": asdict(ratio)} for entry, ratio in outcome.rivals]
        return {
            "bench": "tune",
            "psframe": __version__,
            "config": origin.config["name"],
            **{key: getattr(origin, key) for key in ("machine", "mpi", "n_nodes", "cores", "global_batch", "n_train")},
            "plain": search.plain.plain,
            "gain": asdict(outcome.plain) if outcome.plain else None,
            "ways": rows,
            "equals": [entry.way.plain for entry in outcome.equals],
            "effects": [asdict(effect) for effect in outcome.effects],
            "left_out": search.left_out,
            "failed": {e.way.label: e.failed for e in search.race.entries.values() if e.failed},
        }

    def text(self, figure: str, elapsed_s: float) -> str:
        """Return the outcome as text for a terminal."""
        search, outcome, origin = self.search, self.outcome, self.search.origin
        rivals = outcome.rivals[:TOP]
        rivals += [pair for pair in outcome.rivals[TOP:] if pair[0].way == search.plain]
        rows = [["", *_cells(search, outcome.best, figure), "the best", "", ""]]
        rows += [["", *_cells(search, e, figure), ratio.told, lost_by(e, outcome.best), ""] for e, ratio in rivals]
        lines = [
            f"{origin.config['name']} on {origin.machine}, {origin.n_nodes} node(s): {len(search.race.entries)} ways "
            f"raced in {search.race.round} rounds, {elapsed_s:.0f} s; {origin.global_batch} samples a step in all",
            "",
            aligned([["", "way", figure, "longer than the best", "by", ""], *rows]),
            "",
            *_worth(outcome),
            *_notes(search, outcome),
            self.command(outcome.best.way),
        ]
        return "\n".join(lines)


def _rate(entry: Entry) -> float:
    return 1 / entry.middle


def _epoch_s(search: Search, entry: Entry) -> float:
    return entry.middle * search.origin.n_train


def _row(entry: Entry) -> dict[str, Any]:
    return {**entry.way.plain, "samples_per_s": _rate(entry), "rounds": len(entry.seconds)}


def _goal(found: Found | None, sign: int) -> dict[str, Any]:
    """Return the outcome of a search for a target for JSON."""
    if found is None:
        return {}
    trials = [
        {
            **t.way.plain,
            "seed": t.seed,
            "curve": [(s, sign * value if isfinite(value) else None) for s, value in t.curve],
            "failed": t.failed,
        }
        for t in found.trials
    ]
    seconds = [{**way.plain, "seconds": by_seed} for way, by_seed in found.seconds.items()]
    return {"goal": {"best": found.best.plain, "seconds": seconds, "trials": trials}}


def _cells(search: Search, entry: Entry, figure: str) -> list[str]:
    mark = " (the config)" if entry.way == search.plain else ""
    number = f"{_rate(entry):,.0f}" if figure == "samples_per_s" else f"{_epoch_s(search, entry):.3g}"
    return [entry.way.label + mark, number]


def _worth(outcome: Outcome) -> list[str]:
    """Return a line for each setting of the best way with the seconds without it, and one on the runner-up."""
    lines = [
        f"worth of {effect.key}={effect.value}: {effect.ratio.told} seconds with {effect.without}"
        for effect in outcome.effects
    ]
    if outcome.runner_up:
        entry, ratio = outcome.runner_up
        why = lost_by(entry, outcome.best) or "no phase alone"
        lines.append(f"the runner-up, {entry.way.label}, took {ratio.told} seconds: {why}")
    return lines


def _notes(search: Search, outcome: Outcome) -> list[str]:
    """Return notes on what the search did not do, or could not tell."""
    lines = []
    if outcome.equals:
        labels = "; ".join(entry.way.label for entry in outcome.equals)
        lines.append(f"note: noise alone may part these from the best: {labels}")
    if outcome.best.way == search.plain:
        lines.append("note: no way was faster than the config as it is")
    if search.race.out_of_time:
        lines.append("note: the budget has ended the race; with more of it the same command may find a faster way")
    lines += [f"note: left out {n} way(s): {why}" for why, n in search.left_out.items()]
    failed = [e for e in search.race.entries.values() if e.failed]
    return lines + [f"note: {e.way.label} cannot be trained: {e.failed}" for e in failed]
