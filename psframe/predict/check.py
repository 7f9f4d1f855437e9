"""Check of predictions (:func:`run`): predicts first, trains after, and adds both to the machine's profile."""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median

import msgspec

from psframe.cluster import mpirun
from psframe.errors import UserError
from psframe.predict import machine, view
from psframe.predict.command import Asked
from psframe.predict.machine import Check
from psframe.record import metrics
from psframe.record.view import say

EPOCHS = 4  # the first is not counted
#: overrides against costs that no prediction counts
BESIDE = ("checkpoint.every_epochs=0", f"train.epochs={EPOCHS}", "checkpoint.resume=none")


def run(asked: Asked) -> Asked:
    """Predict and train at each number of ranks; return the request, with the checks in its machine.

    Raise UserError if training fails.
    """
    predicted = [(n, asked.job.predict(asked.at(n))) for n in asked.ranks]
    for n, found in predicted:
        print(f"predicted: {found.way.name}, {n} ranks: {found.epoch_s:.3g} s", file=sys.stderr, flush=True)
    checks = []
    for n, found in predicted:
        seconds = trained(asked, n)
        what = f"{asked.job.work.model}, batch {asked.job.work.batches[0]}, {found.way.method}"
        what += found.way.encoded
        what += ", colocated" if found.way.mode == "sync_ps" and not found.way.dedicated else ""
        what += f", {found.way.link or asked.job.machine.link} Gb/s" if asked.job.hosts > 1 else ""
        checks.append(Check(what, n, round(found.epoch_s, 5), round(seconds, 5), asked.job.hosts))
    profile = machine.read(asked.profile)  # read again: another command may have added to it meanwhile
    newest = {(each.what, each.ranks, each.hosts): each for each in (*profile.checks, *checks)}
    whole = msgspec.structs.replace(profile, checks=list(newest.values()))
    machine.write(asked.profile, whole)
    say(view.checks(checks))
    say(view.error_line(whole))
    return replace(asked, job=replace(asked.job, machine=whole))


def trained(asked: Asked, n: int) -> float:
    """Return the median seconds of an epoch on ``n`` ranks."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["-m", "psframe.train", asked.config, *asked.overrides, *BESIDE, f"record.dir={folder}", "--quiet"]
        ended = mpirun.python(asked.start, n, arguments)
        if ended.complaint:
            raise UserError(ended.complaint)
        (run,) = [path for path in Path(folder).iterdir() if path.is_dir()]
        return median(float(record["epoch_s"]) for record in metrics.read(run)[1:])
