"""Results of a search: ``tuned.yaml``, which runs as it is (:func:`write`), figures in JSON, text (:func:`text`)."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from psframe import __version__
from psframe.config import short
from psframe.config.schema import spelled, to_yaml
from psframe.config.tuned import Tuned
from psframe.record import tuned as cache
from psframe.record.folder import chosen_file
from psframe.record.view import aligned
from psframe.tune.outcome import Outcome, lost_by
from psframe.tune.race import SURE_ROUNDS, Entry
from psframe.tune.search import Search
from psframe.tune.way import Way

TOP = 8  # rows of the table
CONFIG, FIGURES = "tuned.yaml", "tune.json"


def command(way: Way, path: Path) -> str:
    """Return the command that trains a way by its file."""
    return f"mpirun -n {way.n_ranks} python -m psframe.train {path}"


def write(search: Search, outcome: Outcome, config: str, overrides: Sequence[str], out: Path) -> None:
    """Write ``tuned.yaml`` and ``tune.json`` into ``out``. Raises OSError."""
    origin, best = search.origin, outcome.best
    content: dict[str, Any] = {"base": os.path.relpath(config, out), "name": origin.config["name"]}
    for override in (*overrides, *best.way.overrides):
        short.override(content, override)
    gain = f"; the config as it is on {search.plain.n_ranks} rank(s): {outcome.plain.told}" if outcome.plain else ""
    head = [
        f"The fastest of {len(search.race.entries)} ways to train {config}, found by psframe tune {__version__}:",
        f"    {command(best.way, out / CONFIG)}",
        f"{1 / best.middle:,.0f} samples/s, {best.middle * origin.n_train:.4g} s an epoch{gain}",
        f"on {origin.machine}, {origin.mpi}, {origin.n_nodes} node(s), {origin.global_batch} samples a step",
    ]
    with chosen_file(out / CONFIG, "w") as file:
        file.write("".join(f"# {line}\n" for line in head) + to_yaml(content))
    with chosen_file(out / FIGURES, "w") as file:
        file.write(json.dumps(plain(search, outcome), indent=1) + "\n")


def keep(search: Search, outcome: Outcome) -> None:
    """Keep the fastest way on each number of ranks for ``tuned=auto``. Raises OSError."""
    origin, n_done = search.origin, set[int]()
    for entry in (outcome.best, *(entry for entry, ratio in outcome.rivals if ratio.n >= SURE_ROUNDS)):
        if entry.way.n_ranks not in n_done:
            n_done.add(entry.way.n_ranks)
            result = Tuned(origin.machine, origin.mpi, origin.n_nodes, entry.way.n_ranks, origin.global_batch,
                           entry.way.overrides, 1 / entry.middle)  # fmt: skip
            cache.keep(origin.key, result)


def plain(search: Search, outcome: Outcome) -> dict[str, Any]:
    """Return the outcome for JSON."""
    origin = search.origin
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


def _row(entry: Entry) -> dict[str, Any]:
    return {**entry.way.plain, "samples_per_s": 1 / entry.middle, "rounds": len(entry.seconds)}


def text(search: Search, outcome: Outcome, goal: str, out: Path, elapsed_s: float) -> str:
    """Return the outcome as text for a terminal."""
    origin, best = search.origin, outcome.best
    shown = [pair for number, pair in enumerate(outcome.rivals) if number < TOP or pair[0].way == search.plain]
    rows = [["", *_cells(search, best, goal), "the best", "", ""]]
    rows += [["", *_cells(search, e, goal), ratio.told, lost_by(e, best), ""] for e, ratio in shown]
    lines = [
        f"{origin.config['name']} on {origin.machine}, {origin.n_nodes} node(s): {len(search.race.entries)} ways "
        f"raced in {search.race.round} rounds, {elapsed_s:.0f} s; {origin.global_batch} samples a step in all",
        "",
        aligned([["", "way", goal, "longer than the best", "by", ""], *rows]),
        "",
        *_worth(outcome),
        *_honest(search, outcome),
        f"{out / CONFIG}: {command(best.way, out / CONFIG)}",
    ]
    return "\n".join(lines)


def _cells(search: Search, entry: Entry, goal: str) -> list[str]:
    mark = " (the config)" if entry.way == search.plain else ""
    rate = f"{1 / entry.middle:,.0f}" if goal == "samples_per_s" else f"{entry.middle * search.origin.n_train:.3g}"
    return [entry.way.label + mark, rate]


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


def _honest(search: Search, outcome: Outcome) -> list[str]:
    """Return notes on what the search did not do, or could not tell."""
    lines = []
    if outcome.equals:
        labels = "; ".join(entry.way.label for entry in outcome.equals)
        lines.append(f"note: noise alone may part these from the best, and none has fewer settings: {labels}")
    if outcome.plain is None:
        lines.append("note: no way was faster than the config as it is")
    if search.race.out_of_time:
        lines.append("note: the budget has ended the race; with more of it the same command may find a faster way")
    lines += [f"note: left out {n} way(s): {why}" for why, n in search.left_out.items()]
    failed = [e for e in search.race.entries.values() if e.failed]
    return lines + [f"note: {e.way.label} cannot be trained: {spelled(e.failed)}" for e in failed]
