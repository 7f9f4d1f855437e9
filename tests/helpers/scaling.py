"""Train, and let other ranks train from given steps on: ``python -m tests.helpers.scaling STEP:RANKS[,...] CONFIG``.

Steps count from 1 over the job, as rank 0 takes them, and go on where another rank takes its place. A request is
written after that step, or once the one before is answered, and looked for at once. Answers are printed as JSON, one a
line. In place of RANKS, ``kill-3`` kills rank 3 of the start, ``kill-3-0.1`` a tenth of a second later, and ``stop-3``
lets it stop for a while.

In the environment, TERM_AT=2 sends each rank a SIGTERM while it builds its part of the run anew a second time, and
KILL_AT=2 kills rank 0 there; KILL_RECORD=2 does when it has recorded epoch 2. KILL_END=3 kills rank 3 when it leaves
the job. TRACE=FOLDER writes there what each rank does, in a file of its number, in the words of
tests/models/membership.pml.
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
from psframe.cluster.pool import Pool
from psframe.record import metrics, scaling
from psframe.train import command, epoch
from psframe.train.elastic import resize
from psframe.train.elastic.scaling import Scaling


def made() -> str:
    """Return the path of a file of three zeros, which ranks map."""
    with tempfile.NamedTemporaryFile(delete=False) as file:
        file.write(bytes(24))
    return file.name


schedule = [part.split(":") for part in sys.argv[1].split(",")]
pids = MPI.COMM_WORLD.allgather(os.getpid())
due, answer, rebuilt, append, leave = Scaling.due, scaling.answer, resize.rebuilt, metrics.append, Pool.leave
n_built, term_at, kill_at = 0, int(os.environ.get("TERM_AT", 0)), int(os.environ.get("KILL_AT", 0))
shared = MPI.COMM_WORLD.bcast(made() if MPI.COMM_WORLD.rank == 0 else "")
STEPS, OPEN, DONE = range(3)  # steps taken, 1 while a request is open, parts of the schedule begun
counts = np.memmap(shared, np.int64, "r+", shape=3)
MPI.COMM_WORLD.Barrier()
Path(shared).unlink(missing_ok=True)


def beside(commands: str) -> None:
    """Run commands that outlive this rank."""
    subprocess.Popen(["sh", "-c", commands], stderr=subprocess.DEVNULL, start_new_session=True)


def and_ask(job: Scaling) -> bool:
    counts[STEPS] += 1
    left = schedule[counts[DONE] :]
    if left and counts[STEPS] >= int(left[0][0]) and not counts[OPEN]:
        counts[DONE] += 1
        _, what = left[0]
        how, _, of = what.partition("-")
        rank, _, later_s = of.partition("-")
        if later_s:
            beside(f"sleep {later_s}; kill -KILL {pids[int(rank)]}")
        elif how == "kill":
            os.kill(pids[int(rank)], signal.SIGKILL)
        elif how == "stop":
            beside(f"kill -STOP {pids[int(rank)]}; sleep 0.3; kill -CONT {pids[int(rank)]}")
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


def and_die(pool, *given, **named):
    if pool.number == int(os.environ.get("KILL_END", -1)):
        os.kill(os.getpid(), signal.SIGKILL)
    leave(pool, *given, **named)


def traced(folder: str) -> None:
    """Write this rank's events from here on: its views, steps, messages that it hears, and losses."""
    file = os.open(Path(folder) / str(MPI.COMM_WORLD.rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    divide, hear, survive, turn = Pool.divide, Pool.hear, Pool.survive, epoch._turn

    def note(event: str) -> None:
        os.write(file, f"{event}\n".encode())  # at once: a kill loses nothing

    def numbers(pool: Pool, members: list[int]) -> list[int]:
        group = pool.cluster.comm.Get_group()
        return list(MPI.Group.Translate_ranks(group, members, MPI.COMM_WORLD.Get_group()))

    def and_note_view(pool, members):
        note(f"VIEW {sum(1 << number for number in numbers(pool, members))}")
        return divide(pool, members)

    def and_note_message(pool, message=None, last=False):
        heard = hear(pool, message, last)
        if pool.cluster.rank:
            note("HEARD_" + ("ENDED" if "ended" in heard else "GOES_ON" if "goes_on" in heard else "CHANGE"))
        return heard

    def and_note_loss(pool, holds):
        note("LOSS")
        keepers = survive(pool, holds)
        if not pool.ended:
            note(f"LEADS {numbers(pool, [0])[0]}")
        return keepers

    def and_note_step(run, *given):
        arena = run.sync.source.arena
        before, is_first = arena.steps_ended, run.cluster.rank == 0
        try:
            turn(run, *given)
        finally:  # rank 0 may hear of a death behind its commit
            if is_first and arena.steps_ended > before:
                note("COMMIT")
        if not is_first:
            note("STEP")

    Pool.divide, Pool.hear, Pool.survive, epoch._turn = and_note_view, and_note_message, and_note_loss, and_note_step


if __name__ == "__main__":
    if "TRACE" in os.environ:
        traced(os.environ["TRACE"])
    resize.rebuilt, metrics.append = and_term, and_kill
    Scaling.due, scaling.answer, Pool.leave = and_ask, and_tell, and_die
    sys.exit(guarded(command.main, sys.argv[2:]))
