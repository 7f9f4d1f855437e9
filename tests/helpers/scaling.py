"""Train, and let other ranks train from given steps on: ``python -m tests.helpers.scaling STEP:RANKS[,...] CONFIG``.

Steps count from 1 over the job, as rank 0 takes them, and go on where another rank takes its place. A request is
written after that step, or once the one before is answered, and looked for at once. Answers are printed as JSON, one a
line. In place of RANKS, ``kill-3`` kills rank 3 of the start, and ``stop-3`` lets it stop for a while.

In the environment, TERM_AT=2 sends each rank a SIGTERM while it builds its part of the run anew a second time, and
KILL_AT=2 kills rank 0 there; KILL_RECORD=2 does when it has recorded epoch 2.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from mpi4py import MPI
from msgspec import to_builtins

from psframe.cluster.command import guarded
from psframe.record import metrics, scaling
from psframe.train import command
from psframe.train.elastic import resize
from psframe.train.elastic.scaling import Scaling


def made() -> str:
    """Return the path of a file of three zeros, which ranks map."""
    with tempfile.NamedTemporaryFile(delete=False) as file:
        file.write(bytes(24))
    return file.name


schedule = [part.split(":") for part in sys.argv[1].split(",")]
pids = MPI.COMM_WORLD.allgather(os.getpid())
due, answer, rebuilt, append = Scaling.due, scaling.answer, resize.rebuilt, metrics.append
n_built, term_at, kill_at = 0, int(os.environ.get("TERM_AT", 0)), int(os.environ.get("KILL_AT", 0))
shared = MPI.COMM_WORLD.bcast(made() if MPI.COMM_WORLD.rank == 0 else "")
STEPS, OPEN, DONE = range(3)  # steps taken, 1 while a request is open, parts of the schedule begun
counts = np.memmap(shared, np.int64, "r+", shape=3)
MPI.COMM_WORLD.Barrier()
Path(shared).unlink(missing_ok=True)


def and_ask(job: Scaling) -> bool:
    counts[STEPS] += 1
    left = schedule[counts[DONE] :]
    if left and counts[STEPS] >= int(left[0][0]) and not counts[OPEN]:
        counts[DONE] += 1
        _, what = left[0]
        if what.startswith("kill-"):
            os.kill(pids[int(what[5:])], signal.SIGKILL)
        elif what.startswith("stop-"):
            pid = pids[int(what[5:])]
            subprocess.Popen(["sh", "-c", f"kill -STOP {pid}; sleep 0.3; kill -CONT {pid}"], stderr=subprocess.DEVNULL)
        else:
            counts[OPEN] = 1
            scaling.ask(job.run, int(what), [])
    if counts[OPEN]:
        job.looked = 0.0
    return due(job)


def and_tell(run: Path, told: scaling.Answer) -> None:
    answer(run, told)
    counts[OPEN] = 0
    print(json.dumps(to_builtins(told)), flush=True)


def and_term(*given):
    global n_built
    n_built += 1
    if n_built == term_at:
        os.kill(os.getpid(), signal.SIGTERM)
    if n_built == kill_at and MPI.COMM_WORLD.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return rebuilt(*given)


def and_kill(run: Path, file: str, records: list) -> None:
    append(run, file, records)
    if (
        file == "metrics.jsonl"
        and str(records[0]["epoch"]) == os.environ.get("KILL_RECORD")
        and not MPI.COMM_WORLD.rank
    ):
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    resize.rebuilt, metrics.append = and_term, and_kill
    Scaling.due, scaling.answer = and_ask, and_tell
    sys.exit(guarded(command.main, sys.argv[2:]))
