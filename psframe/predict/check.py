"""Check of predictions (:func:`run`): predicts first, trains after, and adds both to the machine's profile."""

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, Literal

import msgspec

from psframe.bench import sweep
from psframe.errors import UserError
from psframe.predict import machine, view
from psframe.predict.command import Asked
from psframe.predict.machine import Check, Machine
from psframe.predict.paces import predicted
from psframe.record.view import say

EPOCHS = 4  # the first is not counted
#: overrides against costs that no prediction counts
BESIDE = ("checkpoint.every_epochs=0", f"train.epochs={EPOCHS}", "train.stop=null", "checkpoint.resume=none")


def run(asked: Asked) -> Asked:
    """Predict and train at each number of ranks; return the request, with the checks in its machine.

    Raise UserError if training fails.
    """
    predictions = [(n, predicted(asked.job, asked.at(n))) for n in asked.ranks]
    for n, prediction in predictions:
        print(f"predicted: {prediction.way.name}, {n} ranks: {prediction.epoch_s:.3g} s", file=sys.stderr, flush=True)
    checks = []
    for n, prediction in predictions:
        seconds = epoch_s(trained(asked.start, asked.config, asked.overrides, n))
        what = asked.job.named(prediction.way)
        checks.append(Check(what, n, round(prediction.modelled_s, 5), round(seconds, 5), asked.job.hosts))
    updated = add(asked.profile, checks)
    say(view.checks(checks))
    say(view.error_line(updated.checks))
    return replace(asked, job=replace(asked.job, machine=updated))


def add(path: str, checks: Sequence[Check], where: Literal["checks", "simulations"] = "checks") -> Machine:
    """Add epochs to a profile, in place of earlier ones of the same; return the profile. UserError if it cannot be.

    One that comes with psframe is left as it is, and that is said: there is no file of its name to write to.
    """
    profile = machine.read(path)  # read again: another command may have added to it meanwhile
    newest = {(check.what, check.ranks, check.hosts): check for check in (*getattr(profile, where), *checks)}
    updated = msgspec.structs.replace(profile, **{where: list(newest.values())})
    if machine.is_own(path):
        say(f"{path} comes with psframe, and stays as it is; psframe predict --measure FILE writes one that grows")
    else:
        machine.write(path, updated)
    return updated


def trained(start: Sequence[str], config: str, overrides: Sequence[str], n: int) -> list[dict[str, Any]]:
    """Return the records of ``EPOCHS`` epochs on ``n`` ranks, which a launcher starts; UserError if that fails."""
    with tempfile.TemporaryDirectory() as folder:
        records, complaint = sweep.train(start, n, config, [*overrides, *BESIDE], Path(folder))
    if complaint:
        raise UserError(complaint)
    return records


def epoch_s(records: Sequence[dict[str, Any]]) -> float:
    """Return the median seconds of an epoch, without the first."""
    return median(float(record["epoch_s"]) for record in records[1:])
