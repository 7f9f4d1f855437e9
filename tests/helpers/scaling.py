"""Train, and let other ranks train from given steps on: ``python -m tests.helpers.scaling STEP:RANKS[,...] CONFIG``.

Steps count from 1 over the job, as rank 0 takes them. A request is written after that step, or once the one before is
answered, and looked for at once. Answers are printed as JSON, one a line. In place of RANKS, ``kill-3`` kills rank 3.
With TERM_AT=2 in the environment, each rank gets a SIGTERM while it builds its part of the run anew a second time.
"""

import json
import os
import signal
import sys
from pathlib import Path

from mpi4py import MPI
from msgspec import to_builtins

from psframe.cluster.command import guarded
from psframe.record import scaling
from psframe.train import command
from psframe.train.elastic import resize
from psframe.train.elastic.scaling import Scaling

schedule = [part.split(":") for part in sys.argv[1].split(",")]
pids = MPI.COMM_WORLD.allgather(os.getpid())
due, answer, rebuilt = Scaling.due, scaling.answer, resize.rebuilt
n_steps, n_open, n_built, term_at = 0, 0, 0, int(os.environ.get("TERM_AT", 0))


def and_ask(job: Scaling) -> bool:
    global n_steps, n_open
    n_steps += 1
    if schedule and n_steps >= int(schedule[0][0]) and not n_open:
        _, what = schedule.pop(0)
        if what.startswith("kill-"):
            os.kill(pids[int(what[5:])], signal.SIGKILL)
        else:
            scaling.ask(job.run, int(what), [])
            n_open = 1
    if n_open:
        job.looked = 0.0
    return due(job)


def and_tell(run: Path, told: scaling.Answer) -> None:
    global n_open
    answer(run, told)
    n_open = 0
    print(json.dumps(to_builtins(told)), flush=True)


def and_term(*given):
    global n_built
    n_built += 1
    if n_built == term_at:
        os.kill(os.getpid(), signal.SIGTERM)
    return rebuilt(*given)


if __name__ == "__main__":
    resize.rebuilt = and_term
    Scaling.due, scaling.answer = and_ask, and_tell
    sys.exit(guarded(command.main, sys.argv[2:]))
