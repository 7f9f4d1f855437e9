"""Trials of a search for a target (:class:`Trials`): runs under mpirun, which go on where they were stopped."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from time import monotonic
from typing import Any

from psframe.bench import sweep
from psframe.config.schema import spelled
from psframe.errors import UserError
from psframe.record import metrics, run_dir
from psframe.train.callbacks.best import Best
from psframe.tune.goal import Curve, OutOfTime, Trial
from psframe.tune.journal import Journal

ENDLESS = 1 << 30  # epochs without an improvement


@dataclass
class Trials:
    """Trials of a command.

    Attributes
    ----------
    start : sequence of str
        The launcher.
    config : str
    overrides : sequence of str
    out : Path
        Folder of the search.
    metric : str
    target : float
    journal : Journal
    left_s : callable
        Seconds that remain of the budget.
    pace : float
        Seconds of the last trial for each of its seconds of training: it starts, evaluates and writes, too.
    """

    start: Sequence[str]
    config: str
    overrides: Sequence[str]
    out: Path
    metric: str
    target: float
    journal: Journal
    left_s: Callable[[], float]
    pace: float = 1.0

    @property
    def sign(self) -> int:
        """1 if more of the metric is better, else -1: curves have the metric times this."""
        return -1 if Best(self.metric).smaller else 1

    def train(self, trial: Trial, seconds: float) -> tuple[Curve, bool]:
        """Train a trial to the target, or to so many seconds of training.

        Return its curve, and whether the budget has stopped it before. Raises UserError if it fails, OutOfTime if there
        is no time to begin it.
        """
        request = ["trial", trial.number, trial.way.plain, trial.seed, seconds if seconds < float("inf") else None]
        reply = self.journal.reply(request, lambda: self._trained(trial, seconds))
        curve = [(s, float("-inf") if value is None else self.sign * value) for s, value in reply["curve"]]
        return curve, reply["cut"]

    def _trained(self, trial: Trial, seconds: float) -> dict[str, Any]:
        left_s, began = self.left_s(), monotonic()
        if left_s <= 0:
            raise OutOfTime
        limit_s = min(seconds, trial.seconds + left_s / self.pace)
        curve = self._curve(trial, limit_s)
        trained_s = curve[-1][0] - trial.seconds if curve else 0.0
        if trained_s > 0:
            self.pace = max(1.0, (monotonic() - began) / trained_s)
        return {"curve": curve, "cut": limit_s < seconds and bool(curve) and curve[-1][0] >= limit_s}

    def _curve(self, trial: Trial, seconds: float) -> list[tuple[float, float | None]]:
        where = self.out / "trials" / f"{trial.number:03d}"
        records = self._run(trial, seconds, where)
        if any(record["begun_at"] for record in records):  # it was broken off within an epoch, of which a part is timed
            shutil.rmtree(where)
            records = self._run(trial, seconds, where)
        values = [(record.get("metrics") or {}).get(self.metric, record.get(self.metric)) for record in records]
        return [*zip(accumulate(record["epoch_s"] for record in records), values, strict=True)]

    def _run(self, trial: Trial, seconds: float, where: Path) -> list[dict[str, Any]]:
        """Train a trial on from its last checkpoint, or anew where it has none; return the records of its epochs."""
        where.mkdir(parents=True, exist_ok=True)
        resume = "none"
        for run in where.iterdir():
            if _has_ended(run):  # the search was broken off before it was told
                return metrics.read(run)
            if (run / "checkpoints" / "latest").exists():
                resume = str(run)
            else:
                shutil.rmtree(run)
        stop: dict[str, Any] = {"metric": self.metric, "reach": self.target, "patience": ENDLESS}
        stop |= {"seconds": seconds} if seconds < float("inf") else {}
        seed = [f"train.seed={trial.seed}"] if trial.seed is not None else []
        own = [f"train.stop={spelled(stop)}", "checkpoint.keep=1", f"checkpoint.resume={resume}", *seed]
        overrides = [*self.overrides, *trial.way.overrides, *own]
        records, complaint = sweep.train(self.start, trial.way.n_ranks, self.config, overrides, where)
        if complaint:
            raise UserError(complaint)
        return records


def _has_ended(run: Path) -> bool:
    """Return True if a run has trained all epochs of its config."""
    train = (run_dir.config_of(run) or {}).get("train")
    return isinstance(train, dict) and metrics.last_epoch(run) >= train.get("epochs", float("inf"))
