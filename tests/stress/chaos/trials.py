"""One trial: a run that is drawn, started, disturbed, continued if it ended, and held against what was promised."""

import json
import random
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from psframe.errors import UserError
from psframe.record import checkpoint
from tests.helpers import launcher
from tests.helpers.live import left_in_shm
from tests.helpers.runs import tolerant
from tests.stress.chaos.disturbances import KINDS, Disturbance
from tests.stress.chaos.jobs import Job

EPOCHS, HANG_S, LEAVE_S = 16, 180, 90
CONFIG = """\
model: {{name: 'tests.helpers.tiny:build', dropout: 0.3}}
dataset: {{name: synthetic, shape: [2, 8, 9], classes: 5, samples: 4000}}
train: {{epochs: {epochs}, batch_size: 8, seed: 3}}
optimizer: {{name: sgd, lr: 0.01, momentum: 0.5}}
checkpoint: {{every_seconds: 0.2}}
record: {{dir: {folder}/runs, steps: true}}
"""
#: those whose bits are promised, with the ranks that are no workers
EXACT = (("{mode: sync_ps, server: dedicated}", 1), ("{mode: sync_ps, server: colocated}", 0), ("allreduce", 0))
COLLECTIVES = ("shared", "{name: shared, chunk_bytes: 4096}", "buffer")
INEXACT = (
    "async_ps",
    "{mode: async_ps, staleness: 2}",
    "{mode: easgd, period: 4}",
    "{mode: easgd, period: 4, synchronous: true}",
    "hogwild",
    "{mode: local_sgd, every: 3}",
    "{mode: sync_ps, backup_workers: 1}",
)
ANY = ("train.reproducible=any_workers", "train.global_batch=32")
FIXED_WORKERS = 3


@dataclass(frozen=True)
class Trial:
    """What was drawn. ``exact`` is 'any', 'fixed' or '': with which undisturbed run it must agree."""

    number: int
    seed: int
    kind: str
    mpi: str
    n: int
    n_after: int
    keys: tuple[str, ...]
    exact: str
    supervised: bool

    def told(self) -> str:
        under = " under psframe.run" if self.supervised else ""
        return f"trial {self.number} of seed {self.seed}: {self.kind}, {self.mpi}, {self.n} ranks{under}, {self.keys}"


@dataclass(frozen=True)
class Outcome:
    """How it went: 'went on', 'resumed', 'lost', 'hung', or 'late' where there was nothing left to disturb.

    ``equal`` is whether the bits were those of an undisturbed run, None where nothing was to be compared.
    """

    how: str
    equal: bool | None = None
    why: str = ""


def draw(seed: int, number: int, mpis: tuple[str, ...], kinds: tuple[str, ...]) -> Trial:
    """Return what a trial does, which depends on these alone."""
    rng = random.Random(f"{seed} {number}")
    kind = rng.choices(kinds, [KINDS[name][0] for name in kinds])[0]
    mpi, n = rng.choice(mpis), rng.randint(2, 5)
    supervised = KINDS[kind][1].supervisable and rng.random() < 0.2
    exact, n_after = rng.choice(("any", "fixed", "", "")), n
    if exact:
        mode, beside = rng.choice(EXACT)
        keys = (f"sync={mode}", f"collective={rng.choice(COLLECTIVES)}", *(ANY if exact == "any" else ()))
        n_after = rng.randint(1 + beside, 5)
        if exact == "fixed":
            n = n_after = FIXED_WORKERS + beside
    else:
        mode = rng.choice(INEXACT)
        n, keys = max(n, 3 if "backup" in mode else 2), (f"sync={mode}",)
        n_after = n
    if mpi == "ulfm":
        keys = (*keys, "fault.on_worker_loss=continue")
    return Trial(number, seed, kind, mpi, n, n_after, keys, exact, supervised)


def mpi_of(name: str) -> launcher.Mpi | None:
    """Return an MPI: mpich, openmpi, or ulfm, which is Open MPI that outlives a rank."""
    return tolerant() if name == "ulfm" else launcher.installed(name)


def start(trial: Trial, folder: Path, mark: str, *more: str, **env: str) -> Job:
    """Start a trial's job, or the one that continues it."""
    mpi, config = mpi_of(trial.mpi), folder / "chaos.yaml"
    assert mpi
    arguments = ["--quiet", str(config), *trial.keys, *more]
    if not trial.supervised:
        return Job(mpi.command(trial.n, ["-m", "psframe.train", *arguments]), config, mark, **env)
    command = [str(mpi.python), "-m", "psframe.run", "-n", str(trial.n), "--restarts", "6", *arguments]
    env["PSFRAME_MPIRUN"] = " ".join([str(mpi.prefix / "bin" / "mpirun"), *mpi.flags])
    return Job(command, config, mark, True, **env)


def run(trial: Trial, folder: Path, wanted: dict[str, "Undisturbed"]) -> Outcome:
    """Run a trial in an empty folder."""
    (folder / "chaos.yaml").write_text(CONFIG.format(epochs=EPOCHS, folder=folder))
    rng = random.Random(f"{trial.seed} {trial.number} strike")
    disturbance = KINDS[trial.kind][1](rng, trial.n, folder)
    disturbance.prepare()
    job, struck = _disturbed(trial, folder, disturbance)
    if wrong := _left(job):
        return Outcome("hung", why=wrong)
    if not struck and job.process.returncode == 0:
        return Outcome("late")
    if wrong := unreadable(folder / "runs", wanted[trial.exact or "any"].layout):
        return Outcome("lost", why=wrong)
    how, jobs = "went on", [job]
    if not _done(folder / "runs"):
        how, again = "resumed", replace(trial, n=trial.n_after, supervised=False)
        jobs.append(start(again, folder, f"{job.config.parent.name}-again", "checkpoint.resume=auto"))
        jobs[1].wait(HANG_S)
        if wrong := _left(jobs[1]):
            return Outcome("hung", why=f"when it was continued, {wrong}")
        if jobs[1].process.returncode != 0:
            return Outcome("lost", why=f"it cannot be continued: {jobs[1].said.read_text()[-3000:]}")
    return _held(trial, folder, how, jobs, wanted)


def _disturbed(trial: Trial, folder: Path, disturbance: Disturbance) -> tuple[Job, bool]:
    """Start the job, disturb it and wait; return it, and whether it was there to be disturbed."""
    job = start(trial, folder, folder.name, *disturbance.keys, **disturbance.env)
    try:
        struck = disturbance.strike(job)
        job.wait(HANG_S)
    finally:
        disturbance.undo()
    return job, struck


def _left(job: Job) -> str:
    """Return what is wrong with how a job has ended, or ''; kill what is left of it."""
    left = [] if job.hung else job.leaves(LEAVE_S)
    if job.hung or left:
        return f"{'the job does not end' if job.hung else f'these stay behind: {left}'}\n{_end(job)}"
    return f"these stay in /dev/shm: {left_in_shm()}" if left_in_shm() else ""


def _end(job: Job) -> str:
    """Kill a job; return what it has said."""
    job.kill()
    return job.said.read_text()[-6000:]


def _done(runs: Path) -> bool:
    """Whether a run has come to its end, whatever became of its launcher."""
    return any(checkpoint.epoch_of(path / "checkpoints") == EPOCHS for path in runs.glob("*"))


def unreadable(runs: Path, layout: checkpoint.Layout) -> str:
    """Return what is wrong with what ``latest`` names in the runs of a folder, or ''."""
    for latest in runs.glob("*/checkpoints/latest"):
        try:
            saved, notices = checkpoint.newest(latest.parent, layout)
        except UserError as error:
            return str(error)
        if notices or saved is None:
            return f"{latest} names nothing that is whole: {notices}"
    return ""


def _held(trial: Trial, folder: Path, how: str, jobs: list[Job], wanted: dict[str, "Undisturbed"]) -> Outcome:
    runs = {path.parent: records(path) for path in (folder / "runs").glob("*/metrics.jsonl")}
    for path, found in runs.items():
        if [record["epoch"] for record in found] != list(range(1, len(found) + 1)):
            return Outcome("lost", why=f"{path} has epochs {[record['epoch'] for record in found]}")
    whole = [found[-1] for found in runs.values() if len(found) == EPOCHS]
    if not whole:
        return Outcome("lost", why="no run is whole")
    if wrong := unreadable(folder / "runs", wanted[trial.exact or "any"].layout):
        return Outcome("lost", why=wrong)
    fewer = any("died in epoch" in job.said.read_text() for job in jobs)
    if not trial.exact or (trial.exact == "fixed" and fewer):
        return Outcome(how)
    # ranks that have lost their launcher may come to the end beside those that it was started again with
    equal = {record["params_sha256"] for record in whole} == {wanted[trial.exact].sha256}
    return Outcome(how, equal, "" if equal else "its bits are others than those of an undisturbed run")


def records(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@dataclass(frozen=True)
class Undisturbed:
    """What a run ends in that nothing happens to; and the model's layout."""

    sha256: str
    layout: "Layout"


@dataclass(frozen=True)
class Layout:
    text: str
    size: int

    def describe(self) -> str:
        return self.text


def undisturbed(exact: str, mpi: str, folder: Path) -> Undisturbed:
    """Train undisturbed, in an empty folder."""
    import h5py

    config = folder / "chaos.yaml"
    config.write_text(CONFIG.format(epochs=EPOCHS, folder=folder))
    keys = ANY if exact == "any" else ()
    n = 1 if exact == "any" else FIXED_WORKERS
    trial = Trial(0, 0, "", mpi, n, n, ("sync=allreduce", *keys), exact, False)
    job = start(trial, folder, folder.name)
    if job.wait(HANG_S) != 0:
        sys.exit(f"not even the undisturbed run comes to its end: {_end(job)}")
    (run,) = (folder / "runs").iterdir()
    with h5py.File(max((run / "checkpoints").glob("*.h5"))) as file:
        layout = Layout(file["layout"][()].tobytes().decode(), file["params"].size)
    return Undisturbed(records(run / "metrics.jsonl")[-1]["params_sha256"], layout)
