"""Kill ranks at random while others join, leave and stop, and count what comes of it.

    python -m tests.stress.kills --kills 200 [--seed S]

Each trial is a job under Open MPI with ULFM, with ``any_workers``: it must end with the parameters of a run that nobody
disturbed, bit by bit, every sample used once an epoch, and nothing left behind. Exits with 1 where one does not.
"""

import argparse
import random
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.helpers import launcher, runs
from tests.helpers.live import left_in_shm, ranks_of, samples_of
from tests.helpers.runs import SAMPLES

EPOCHS, LARGEST = 2, 8
BLOCKS = ("train.reproducible=any_workers", "train.global_batch=24")
STEPS = EPOCHS * SAMPLES // 24
MODES = ("{mode: allreduce}", "{mode: sync_ps}", "{mode: sync_ps, server: colocated}")
COLLECTIVES = ("shared", "buffer", "object", "hierarchical")


@dataclass(frozen=True)
class Trial:
    """A job of ``n`` ranks, of which ``first`` train at the beginning; ``schedule`` is for tests.helpers.scaling."""

    number: int
    seed: int
    n: int
    first: int
    kills: int
    schedule: str
    mode: str
    collective: str


def drawn(seed: int, number: int) -> Trial:
    """Return what a trial does, which depends on these alone.

    More ranks train than are killed, so that one is left which holds the state. Every other kill comes a while after
    its step: inside of what follows, often the recovery from the kill before.
    """
    rng = random.Random(f"{seed} {number}")
    kills = rng.randint(1, 3)
    n = rng.randint(kills + 2, LARGEST)
    whats = [f"kill-{rank}" + rng.choice(("", f"-{rng.random() / 4:.3f}")) for rank in rng.sample(range(n), kills)]
    whats += [str(rng.randint(kills + 1, n)) for _ in range(rng.randint(0, 3))]
    whats += [f"stop-{rng.randrange(n)}"] * rng.randint(0, 1)
    rng.shuffle(whats)
    steps = sorted(rng.randint(1, STEPS - 10) for _ in whats)
    schedule = ",".join(f"{step}:{what}" for step, what in zip(steps, whats, strict=True))
    first, mode, collective = rng.randint(kills + 1, n), rng.choice(MODES), rng.choice(COLLECTIVES)
    return Trial(number, seed, n, first, kills, schedule, mode, collective)


def undisturbed(mpi: launcher.Mpi, folder: Path) -> list[str]:
    """Return the hash of the parameters after each epoch, the same with any ranks, in any mode."""
    path = runs.write(folder / "run.yaml", EPOCHS)
    ended = launcher.train(mpi, 2, path, "--quiet", *BLOCKS, "sync=allreduce")
    if ended.status:
        raise RuntimeError(f"a run that nobody disturbed ended with {ended.status}: {ended.err}")
    return runs.hashes_of(folder)


def tried(mpi: launcher.Mpi, trial: Trial, folder: Path, hashes: list[str]) -> str:
    """Return "" if a trial ended as it must; else the reason why it did not."""
    path = runs.write(folder / "run.yaml", EPOCHS, "continue")
    keys = (f"elastic.ranks={trial.first}", *BLOCKS, f"sync={trial.mode}", f"collective={trial.collective}")
    ended = launcher.run(mpi, trial.n, ["-m", "tests.helpers.scaling", trial.schedule, path, "--quiet", *keys])
    if ended.timed_out:
        return f"hung: {ended.err}"
    if ended.status:
        return f"ended with {ended.status}: {ended.err}"
    if runs.hashes_of(folder) != hashes:
        return "has other bits"
    if left := [*left_in_shm(), *ranks_of(path)]:
        return f"left behind: {left}"
    seen = samples_of(folder)
    # rank 0 may die with the lines of steps that it had not written; the bits tell that none was lost
    return f"samples by epoch: {dict(seen)}" if max(seen.values()) > SAMPLES else ""


def campaign(mpi: launcher.Mpi, seed: int, kills: int, folder: Path) -> dict[Trial, str]:
    """Return what came of trials until so many ranks are killed, as :func:`tried` says."""
    (folder / "still").mkdir()
    hashes, outcomes = undisturbed(mpi, folder / "still"), dict[Trial, str]()
    while sum(trial.kills for trial in outcomes) < kills:
        trial = drawn(seed, len(outcomes))
        (at := folder / str(trial.number)).mkdir()
        outcomes[trial] = tried(mpi, trial, at, hashes)
        if outcomes[trial]:
            print(f"{trial}: {outcomes[trial]}", file=sys.stderr, flush=True)
    return outcomes


def table(outcomes: dict[Trial, str]) -> list[str]:
    """Return the lines of a table of modes."""
    lines = ["| mode | jobs | ranks killed | as undisturbed | not so |", "|---|---|---|---|---|"]
    for mode in (*MODES, None):
        of_mode = [trial for trial in outcomes if mode in (None, trial.mode)]
        failed = sum(bool(outcomes[trial]) for trial in of_mode)
        cells = (len(of_mode), sum(trial.kills for trial in of_mode), len(of_mode) - failed, failed)
        lines.append(f"| {f'`{mode}`' if mode else 'all'} | {' | '.join(map(str, cells))} |")
    return lines


def main() -> int:
    """Run a campaign; return the exit status."""
    made = argparse.ArgumentParser(prog="python -m tests.stress.kills", description=__doc__.partition("\n")[0])
    made.add_argument("--kills", type=int, default=200)
    made.add_argument("--seed", type=int, default=1)
    given = made.parse_args()
    mpi = runs.tolerant()
    if mpi is None:
        made.exit(1, "no Open MPI is installed: bash launch/test.sh installs it\n")
    with tempfile.TemporaryDirectory(prefix="psframe-kills-") as folder:
        outcomes = campaign(mpi, given.seed, given.kills, Path(folder))
    print(f"seed {given.seed}", *table(outcomes), sep="\n")
    return int(any(outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
