"""Turn over bits at random, in what ranks train with and in checkpoints, and count what comes of it.

    python -m tests.stress.flips --flips 300 [--seed S]

A flip is caught where it was repaired, or ended the run, which was continued; and the end is as accurate as that of an
undisturbed run, to one point. It is harmless where the run itself went on to such an end; else it is neither. Exits
with 1 where fewer than 99 % of the flips of exponents, or of those in checkpoints, are caught or harmless.
"""

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

from tests.helpers import launcher

N_RANKS, EPOCHS, SAMPLES, BATCH = 3, 3, 1000, 8
CONFIG = f"""\
name: flips
model: tests.helpers.tiny:build
dataset: {{name: synthetic, shape: [2, 8, 9], classes: 5, samples: {SAMPLES}}}
train: {{epochs: {EPOCHS}, batch_size: {BATCH}, seed: 3}}
optimizer: {{name: sgd, lr: 0.02, momentum: 0.9}}
fault: {{check_every: 1}}
"""
MODES = ("{mode: sync_ps, server: dedicated}", "{mode: sync_ps, server: colocated}", "allreduce")
COLLECTIVES = ("shared", "buffer")
KINDS = ("params", "state", "gradients")
#: kinds of bits of a float32, with how often each is drawn
BITS = {"exponent": (range(23, 31), 6), "sign": (range(31, 32), 1), "mantissa": (range(23), 3)}
WANTED = 0.99
A_JOB = 60  # flips, since an MPI has so many communicators
POINT = 0.01


def drawn(seed: int, number: int, size: int) -> dict[str, str]:
    """Return what a flip of a model of so many numbers is, which depends on these alone."""
    rng = random.Random(f"{seed} {number}")
    mode, collective = rng.choice(MODES), rng.choice(COLLECTIVES)
    of = rng.choices(list(BITS), [often for _, often in BITS.values()])[0]
    bit = rng.choice(BITS[of][0])
    n_workers = N_RANKS - ("dedicated" in mode)
    kind, step = rng.choice(KINDS), rng.randint(1, EPOCHS * -(-SAMPLES // (BATCH * n_workers)))
    # a dedicated server has no gradients, and workers have no state beside one
    first = N_RANKS - n_workers
    rank = rng.randrange(first if kind == "gradients" else 0, N_RANKS if kind != "state" or not first else 1)
    flip = f"{kind}:{rank}:{step}:{32 * rng.randrange(size) + bit}"
    policy = rng.choice(("rollback", "stop"))
    return {"kind": kind, "of": of, "mode": mode, "collective": collective, "flip": flip, "on_nan": policy}


def over_ranks(report: str, seed: int, first: int, last: int) -> None:
    """Train with each flip of a range, on the ranks of this job; a line of the report tells of each."""
    from mpi4py import MPI

    from tests.ranks.training import folder

    world, sound = MPI.COMM_WORLD, {}
    with folder(world) as where:
        if world.rank == 0:
            (where / "config.yaml").write_text(CONFIG)
        world.Barrier()
        for mode in MODES:
            for collective in COLLECTIVES:
                keys = (f"sync={mode}", f"collective={collective}")
                sound[keys] = _train(world, where / "sound", *keys)[1][-1]["accuracy"]
        for number in range(first, last):
            flip = drawn(seed, number, _size(where / "sound"))
            keys = (f"sync={flip['mode']}", f"collective={flip['collective']}")
            how = _of(world, where / f"flip-{number}", flip, keys, sound[keys])
            if world.rank == 0:
                with open(report, "a") as out:
                    out.write(json.dumps({**flip, "seed": seed, "number": number, **how}) + "\n")


def _of(world, where: Path, flip: dict[str, str], keys: tuple[str, ...], accuracy: float) -> dict[str, object]:
    """Return how a flip was met, and the accuracy that it ended with beside that of an undisturbed run."""
    fault = (f"fault.flip={flip['flip']}", f"fault.on_nan={flip['on_nan']}")
    status, records = _train(world, where, *keys, *fault)
    how = "repaired" if any(record["repaired"] for record in records) else "went on"
    if status:
        how, (status, records) = "ended", _train(world, where, *keys, "checkpoint.resume=auto")
    near = not status and abs(records[-1]["accuracy"] - accuracy) <= POINT + 1e-9
    verdict = ("harmless" if how == "went on" else "caught") if near else "neither"
    return {"how": how, "verdict": verdict, "accuracy": records[-1]["accuracy"] if records else None, "sound": accuracy}


def _size(runs: Path) -> int:
    import h5py

    with h5py.File(next(runs.glob("*/checkpoints/*.h5"))) as file:
        return int(file["params"].size)


def _train(world, where: Path, *keys: str) -> tuple[int, list[dict]]:
    """Train; return the status and the records of the newest run on every rank."""
    from psframe.train import command

    status = command.main([str(where.parent / "config.yaml"), "--quiet", f"record.dir={where}", *keys], world)
    found = [path for path in where.glob("*/metrics.jsonl") if world.rank == 0]
    newest = max(found, key=lambda path: path.stat().st_mtime_ns, default=None)
    return status, world.bcast([json.loads(line) for line in newest.read_text().splitlines()] if newest else [])


def campaign(seed: int, n: int, folder: Path) -> list[dict]:
    """Return what came of each flip of so many; RuntimeError where a job did not come to its end."""
    mpi = launcher.installed("mpich") or launcher.installed("openmpi")
    if mpi is None:
        raise RuntimeError("no MPI is installed: bash launch/test.sh installs two")
    report = folder / "report.jsonl"
    for first in range(0, n, A_JOB):
        last = min(n, first + A_JOB)
        words = ["-m", "tests.stress.flips", "--over-ranks", str(report), str(seed), str(first), str(last)]
        ended = launcher.run(mpi, N_RANKS, words, timeout_s=120 + 10 * (last - first))
        if ended.timed_out or ended.status:
            raise RuntimeError(f"a job ended with {ended.status}: {ended.err[-3000:]}")
    return [json.loads(line) for line in report.read_text().splitlines()]


def in_files(seed: int, n: int, folder: Path) -> Counter:
    """Flip bits of a checkpoint, one at a time, and count what is read then: an older one, or the same, or neither."""
    from psframe.errors import UserError
    from psframe.record import checkpoint
    from tests.helpers.checkpoints import Ten

    layout, rng, counts = Ten(), random.Random(seed), Counter()
    for epoch in (1, 2):
        params = np.full(layout.size, epoch, np.float32)
        path = checkpoint.write(folder, checkpoint.Saved(params, params[None], epoch, epoch, layout.describe()))
    checkpoint.advance(path, 2)
    sound = path.read_bytes()
    for _ in range(n):
        data, bit = bytearray(sound), rng.randrange(8 * len(sound))
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        try:
            saved, notices = checkpoint.newest(folder, layout)
        except UserError:
            saved, notices = None, []
        older = bool(notices) and saved is not None and saved.epoch == 1 and (saved.params == 1).all()
        same = saved is not None and saved.epoch == 2 and (saved.params == 2).all() and (saved.state == 2).all()
        counts["caught" if older else "harmless" if same else "neither"] += 1
    return counts


def table(found: list[dict], files: Counter) -> list[str]:
    """Return the lines of the table, a row for each kind of bit in each vector."""
    lines = ["| flipped | bits | flips | caught | harmless | neither |", "|---|---|---|---|---|---|"]
    for kind in KINDS:
        for of in BITS:
            counts = Counter(flip["verdict"] for flip in found if (flip["kind"], flip["of"]) == (kind, of))
            lines.append(f"| {kind} | {of} | {_row(counts)} |")
    counts = Counter(flip["verdict"] for flip in found if flip["of"] == "exponent")
    return [*lines, f"| all of these | exponent | {_row(counts)} |", f"| checkpoint | any | {_row(files)} |"]


def _row(counts: Counter) -> str:
    return " | ".join(map(str, (counts.total(), counts["caught"], counts["harmless"], counts["neither"])))


def missed(found: list[dict], files: Counter) -> bool:
    """Whether more were neither caught nor harmless than is wanted, of exponents or of checkpoints."""
    counts = Counter(flip["verdict"] for flip in found if flip["of"] == "exponent")
    return any(of["neither"] > (1 - WANTED) * of.total() for of in (counts, files))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.stress.flips", description=__doc__.partition("\n")[0])
    parser.add_argument("--flips", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="psframe-flips-") as root:
        (files := Path(root) / "files").mkdir()
        found, of_files = campaign(given.seed, given.flips, Path(root)), in_files(given.seed, 10 * given.flips, files)
    print(f"seed {given.seed}", *table(found, of_files), sep="\n")
    print(*(flip for flip in found if flip["verdict"] == "neither"), sep="\n", file=sys.stderr)
    return 1 if missed(found, of_files) else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--over-ranks"]:
        over_ranks(sys.argv[2], *map(int, sys.argv[3:6]))
    else:
        sys.exit(main())
