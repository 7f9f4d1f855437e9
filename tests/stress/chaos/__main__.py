"""Disturb runs at random, and see that each goes on, or ends and can be continued, to what was promised.

    python -m tests.stress.chaos --kills 200 [--seed S] [--minutes M] [--only NUMBER] [--kind WORDS]

Prints a table, and exits with 1 where a run was lost, hung, or ended in other bits. Where the kernel lets it, all of it
runs with mounts of its own, and shared memory of its own.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.stress.chaos import trials
from tests.stress.chaos.disturbances import KINDS, SHM, mount
from tests.stress.chaos.trials import Outcome, Trial

INSIDE = "PSFRAME_CHAOS_MOUNTS"
COLUMNS = ("tried", "went on", "resumed", "lost", "hung")


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m tests.stress.chaos", description=__doc__.partition("\n")[0])
    made.add_argument("--kills", type=int, default=200, help="trials, of which each has a disturbance")
    made.add_argument("--seed", type=int, default=1)
    made.add_argument("--minutes", type=float, default=1e9, help="begin no trial after so long")
    made.add_argument("--only", type=int, help="the trial of this number alone")
    made.add_argument("--kind", default="", help="only disturbances whose name has these words")
    return made


def main() -> int:
    given = _parser().parse_args()
    private = INSIDE in os.environ
    if not private:
        _with_mounts()
    else:
        mount("-t", "tmpfs", "-o", "size=96m", "none", str(SHM))
    lacking = {name: reason for name, (_, kind) in KINDS.items() if (reason := kind.lacks(private))}
    kinds = tuple(name for name in KINDS if name not in lacking and given.kind in name)
    mpis = tuple(name for name in ("mpich", "openmpi", "ulfm") if trials.mpi_of(name))
    if not mpis or not kinds:
        sys.exit("no MPI is installed: bash launch/test.sh installs two" if kinds else f"nothing is possible {lacking}")
    with tempfile.TemporaryDirectory(prefix="psframe-chaos-") as folder:
        outcomes = _try(given, Path(folder), mpis, kinds)
    print(f"{', '.join(mpis)}; seed {given.seed}; {_count(outcomes, 'late')} came too late and are not counted")
    print(*(f"not tried: {name}, {reason}" for name, reason in lacking.items()), *table(outcomes), sep="\n")
    return 1 if any(_wrong(outcome) for _, outcome in outcomes) else 0


def _with_mounts() -> None:
    """Start this anew where mounts are its own, if that is allowed: as root, or as a user who is root there."""
    for words in (["unshare", "--mount"], ["unshare", "--map-root-user", "--mount"]):
        try:
            allowed = subprocess.run(
                [*words, "mount", "-t", "tmpfs", "none", str(SHM)], capture_output=True, timeout=60
            )
        except OSError:
            return
        if allowed.returncode == 0:
            os.environ[INSIDE] = "1"
            os.execvp(words[0], [*words, sys.executable, "-m", "tests.stress.chaos", *sys.argv[1:]])


def _try(
    given: argparse.Namespace, root: Path, mpis: tuple[str, ...], kinds: tuple[str, ...]
) -> list[tuple[Trial, Outcome]]:
    wanted = {}
    for exact in ("any", "fixed"):
        (root / exact).mkdir()
        wanted[exact] = trials.undisturbed(exact, mpis[0], root / exact)
    outcomes: list[tuple[Trial, Outcome]] = []
    until, number = time.monotonic() + 60 * given.minutes, given.only or 1
    while time.monotonic() < until and len(outcomes) - _count(outcomes, "late") < given.kills:
        folder = root / f"{os.getpid()}-{number}"
        folder.mkdir()
        trial = trials.draw(given.seed, number, mpis, kinds)
        outcome = trials.run(trial, folder, wanted)
        outcomes.append((trial, outcome))
        print(f"{trial.told()}: {outcome.how}{_bits(outcome)} {outcome.why}", file=sys.stderr, flush=True)
        if _wrong(outcome):
            kept = shutil.copytree(folder, tempfile.mkdtemp(prefix="psframe-chaos-kept-"), dirs_exist_ok=True)
            print(f"what it left is in {kept}", file=sys.stderr, flush=True)
        _clear(folder)
        if INSIDE in os.environ:
            _clear(SHM)  # of what a killed MPI leaves, which would fill it
        if given.only:
            break
        number += 1
    return outcomes


def _clear(folder: Path) -> None:
    """Empty a folder, and what is mounted on its runs."""
    if os.path.ismount(folder / "runs"):
        subprocess.run(["umount", str(folder / "runs")], check=True, timeout=60)
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _wrong(outcome: Outcome) -> bool:
    return outcome.how in ("lost", "hung") or outcome.equal is False


def _bits(outcome: Outcome) -> str:
    return "" if outcome.equal is None else f", bits {'equal' if outcome.equal else 'DIFFER'}"


def _count(outcomes: list[tuple[Trial, Outcome]], how: str) -> int:
    return sum(outcome.how == how for _, outcome in outcomes)


def table(outcomes: list[tuple[Trial, Outcome]]) -> list[str]:
    """Return the lines of the table: a row for each disturbance, and one for all."""
    lines = [f"| disturbance | {' | '.join(COLUMNS)} | bits compared | equal |", "|---|" + "---|" * 7]
    for name in (*KINDS, "all"):
        found = [outcome for trial, outcome in outcomes if name in (trial.kind, "all") and outcome.how != "late"]
        if found:
            how = Counter(outcome.how for outcome in found)
            compared = [outcome.equal for outcome in found if outcome.equal is not None]
            numbers = (len(found), *(how[column] for column in COLUMNS[1:]), len(compared), sum(compared))
            lines.append(f"| {name} | {' | '.join(map(str, numbers))} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
