"""Trials of a search for a target (:class:`Trials`): runs under mpirun, which go on where they were stopped."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from psframe.bench import sweep
from psframe.config.schema import spelled
from psframe.errors import UserError
from psframe.tune.goal import Curve, Trial
from psframe.tune.journal import Journal

ENDLESS = 1 << 30  # epochs without an improvement


@dataclass(frozen=True)
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
    """

    start: Sequence[str]
    config: str
    overrides: Sequence[str]
    out: Path
    metric: str
    target: float
    journal: Journal

    def train(self, trial: Trial, seconds: float) -> Curve:
        """Train a trial to the target, or to so many seconds of training; return its curve. UserError if it fails."""
        request = ["trial", trial.number, trial.way.plain, trial.seed, seconds if seconds < float("inf") else None]
        curve: Curve = [
            (s, value) for s, value in self.journal.reply(request, lambda: self._run(trial, seconds))["curve"]
        ]
        return curve

    def _run(self, trial: Trial, seconds: float) -> dict[str, Any]:
        where = self.out / "trials" / f"{trial.number:03d}"
        where.mkdir(parents=True, exist_ok=True)
        stop: dict[str, Any] = {"metric": self.metric, "reach": self.target, "patience": ENDLESS}
        stop |= {"seconds": seconds} if seconds < float("inf") else {}
        seed = [f"train.seed={trial.seed}"] if trial.seed is not None else []
        begun = [str(run) for run in where.iterdir() if (run / "checkpoints" / "latest").exists()]
        resume = [f"checkpoint.resume={run}" for run in begun[:1]]
        own = [f"train.stop={spelled(stop)}", "checkpoint.keep=1", *seed, *resume]
        overrides = [*self.overrides, *trial.way.overrides, *own]
        records, complaint = sweep.train(self.start, trial.way.n_ranks, self.config, overrides, where)
        if complaint:
            raise UserError(complaint)
        values = [(record.get("metrics") or {}).get(self.metric, record.get(self.metric)) for record in records]
        return {"curve": [*zip(accumulate(record["epoch_s"] for record in records), values, strict=True)]}
