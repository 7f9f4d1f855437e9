"""Put seeded defects into a copy of psframe, one at a time, and see which test notices.

    python -m tests.mutants [NAME ...] [--jobs 1] [--out TABLE.md] [--folder COPY] [--timeout 30] [--trust]

A mutant is a patch of this folder; its first line says what is wrong. The test that killed it last time runs first
(``table.md`` of this folder), then those that are near to what it changes (``tests.mutants.near``), then all modes over
all collectives, then the others of the default suite, up to the first that fails. Prints a row a mutant, and exits with
1 where one survived, with 2 where one cannot be tried. The copy is of the last commit, without what was changed since;
``git checkout -- .`` takes every mutant out there.
"""

import argparse
import queue
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import psutil

from tests import changed
from tests.mutants.copies import Copy, Mutant, UnableError, end
from tests.mutants.near import tests_of

HERE = Path(__file__).resolve().parent
TABLE = HERE / "table.md"
#: what every change of psframe is tried with: all modes over all collectives, and whole runs in every mode
SMOKE = [changed.RANKS, changed.VIRTUAL_RANKS, "-k", f"({' or '.join(changed.SMOKE)}) and not openmpi"]
ASKED = (signal.SIGINT, signal.SIGTERM)
HEAD = ("mutant", "what is wrong", "killed by", "seconds")


def chosen(names: Sequence[str]) -> list[Mutant]:
    """Return the mutants whose names have these words; all without any."""
    every = [Mutant.read(path) for path in sorted(HERE.glob("*.patch"))]
    if missing := [name for name in names if not any(name in mutant.path.stem for mutant in every)]:
        raise UnableError(f"there is no mutant {missing[0]!r}; ls {HERE} shows all")
    return [mutant for mutant in every if not names or any(name in mutant.path.stem for name in names)]


def killers(table: Path) -> dict[str, str]:
    """Return the test that killed each mutant, by the mutant's name, from a table that an earlier call printed."""
    rows = [line.split(" | ") for line in table.read_text().splitlines() if "::" in line] if table.exists() else []
    return {row[0].removeprefix("| "): row[-2].replace("\\|", "|") for row in rows}


def tried(mutant: Mutant, copies: "queue.Queue[Copy]", trust: bool) -> tuple[bool, str]:
    """Return whether a test has killed a mutant, and its row of the table."""
    copy, began = copies.get(), time.monotonic()
    try:
        killer, is_near = _killer(mutant, copy)
        said = killer or "SURVIVED"
        # what is not near was not seen to pass without the mutant
        if killer and not is_near and not trust and copy.fails(killer):
            killer, said = "", f"SURVIVED: {killer} fails without it, too"
    finally:
        copies.put(copy)
    return bool(killer), _row(mutant.path.stem, mutant.wrong, said, f"{time.monotonic() - began:.0f}")


def _killer(mutant: Mutant, copy: Copy) -> tuple[str, bool]:
    """Return what has killed a mutant, "" where nothing did, and whether it was a near test."""
    try:
        copy.put_in(mutant)
        near = tests_of(copy.folder, mutant.files)
        last = [test for test in [killers(TABLE).get(mutant.path.stem)] if test]
        for words in (last, near, SMOKE):
            if words and (killer := copy.killer(words)):
                return killer, True
        return copy.killer(["tests", *(f"--ignore={name}" for name in near)]), False
    finally:
        copy.take_out(mutant)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def judge(mutants: Sequence[Mutant], copy: Copy, trust: bool) -> None:
    """UnableError where a mutant does not apply, or a near test of one fails without it."""
    for mutant in mutants:
        copy.judge(mutant)
    last = {killers(TABLE).get(mutant.path.stem, "") for mutant in mutants} - {""}
    near = sorted(last | {name for mutant in mutants for name in tests_of(copy.folder, mutant.files)})
    if not trust and near and (killer := copy.killer(near)):
        raise UnableError(f"tests must pass without a mutant, got {killer}, which does not; mend it, or give --trust")


def run(given: argparse.Namespace, folder: Path) -> int:
    """Try the mutants that were asked for, and print the table; return the exit status."""
    mutants, copies, lines = chosen(given.name), queue.Queue[Copy](), list[str]()
    for number in range(given.jobs):
        copy = Copy(folder.with_name(f"{folder.name}-{number + 1}") if number else folder, 60 * given.timeout)
        copy.prepare()
        copies.put(copy)
    judge(mutants, copy, given.trust)

    def tell(line: str) -> None:
        lines.append(line)
        print(line, flush=True)
        if given.out:
            given.out.write_text("\n".join(lines) + "\n")

    tell(f"{_row(*HEAD)}\n{'|---' * len(HEAD)}|")
    pool, n_killed = ThreadPoolExecutor(given.jobs), 0
    try:
        for killed, row in pool.map(partial(tried, copies=copies, trust=given.trust), mutants):
            n_killed += killed
            tell(row)
    except BaseException:  # Ctrl-C, or a mutant that cannot be tried: what runs is ended
        pool.shutdown(wait=False, cancel_futures=True)
        end(psutil.Process().children())
        raise
    finally:
        pool.shutdown()
    tell(f"\nkilled {n_killed} of {len(mutants)}")
    return int(n_killed < len(mutants))


def _leave(*_: object) -> None:
    """Leave, once: what is in the copy is taken out, whoever asks again meanwhile."""
    for number in ASKED:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def main() -> int:
    made = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.partition("\n")[0])
    made.add_argument("name", nargs="*", help="words of the mutants' names, as memory or 07 (default: all mutants)")
    made.add_argument("--jobs", type=int, default=1, help="mutants at a time, each in a copy of its own (default: 1)")
    made.add_argument("--out", type=Path, help="a file for the table, too")
    made.add_argument("--folder", type=Path, help="a copy to take, or to make and keep (default: a temporary one)")
    made.add_argument("--timeout", type=float, default=30, help="minutes without a test that ends (default: 30)")
    made.add_argument("--trust", action="store_true", help="take it that all tests pass without a mutant")
    given = made.parse_args()
    if given.jobs < 1 or not given.timeout > 0:
        made.error("--jobs must be 1 or more, and --timeout more than 0")
    for number in ASKED:
        signal.signal(number, _leave)
    try:
        with tempfile.TemporaryDirectory(prefix="psframe-mutants-") as scratch:
            return run(given, given.folder.resolve() if given.folder else Path(scratch, "copy"))
    except UnableError as error:
        print(f"tests.mutants: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
