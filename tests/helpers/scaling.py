"""Train, and let other ranks train from given steps on: ``python -m tests.helpers.scaling STEP:RANKS[,...] CONFIG``.

Steps count from 1 over the job, as rank 0 takes them. A request is written after that step, or once the one before is
answered, and looked for at once. Answers are printed as JSON, one a line.
"""

import json
import sys
from pathlib import Path

from msgspec import to_builtins

from psframe.cluster.command import guarded
from psframe.record import scaling
from psframe.train import command
from psframe.train.elastic.scaling import Scaling

schedule = [tuple(map(int, part.split(":"))) for part in sys.argv[1].split(",")]
due, answer = Scaling.due, scaling.answer
n_steps, n_open = 0, 0


def and_ask(job: Scaling) -> bool:
    global n_steps, n_open
    n_steps += 1
    if schedule and n_steps >= schedule[0][0] and not n_open:
        scaling.ask(job.run, schedule.pop(0)[1], [])
        n_open = 1
        job.looked = 0.0
    return due(job)


def and_tell(run: Path, told: scaling.Answer) -> None:
    global n_open
    answer(run, told)
    n_open = 0
    print(json.dumps(to_builtins(told)), flush=True)


if __name__ == "__main__":
    Scaling.due, scaling.answer = and_ask, and_tell
    sys.exit(guarded(command.main, sys.argv[2:]))
