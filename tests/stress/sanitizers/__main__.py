"""Run the compiled parts under every tool, and print findings: ``python -m tests.stress.sanitizers [--quick]``."""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.helpers.suite import DEFAULT
from tests.stress.sanitizers import runs
from tests.stress.sanitizers.instrumented import NoSanitizerError, build
from tests.stress.sanitizers.runs import FULL, QUICK, Outcome

LONGEST_S = 3 * 3600.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.stress.sanitizers", description=__doc__.partition(": ")[2])
    parser.add_argument("--quick", action="store_true", help="a part, in a few minutes")
    quick = parser.parse_args().quick
    names, leaks = QUICK if quick else FULL, "tests/stress/test_leaks.py"
    print("| tool | over | tests | findings | minutes |\n|---|---|---|---|---|", flush=True)
    ended = [
        _row("AddressSanitizer, UBSan", "the extensions", lambda: _instrumented(names)),
        _row("ThreadSanitizer", "what ranks wait by", lambda: _threads(quick)),
        _row(
            "valgrind memcheck",
            "the allocators",
            lambda: runs.watched(leaks, "valgrind", "", LONGEST_S),
        ),
    ]
    return 0 if all(ended) else 1


def _instrumented(names: tuple[str, ...]) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="psframe-sanitized-") as folder:
        return runs.instrumented(build(Path(folder) / "copy"), names, LONGEST_S)


def _threads(quick: bool) -> Outcome:
    return runs.watched("tests/stress/test_gates_stress.py", "", DEFAULT if quick else "", LONGEST_S)


def _row(tool: str, over: str, run: Callable[[], Outcome]) -> bool:
    """Print a row of the table, and on stderr what a tool or a failed test had to say; return whether all is well."""
    began = time.monotonic()
    try:
        outcome = run()
    except NoSanitizerError as error:
        print(f"| {tool} | {over} | not run: {error} | | |", flush=True)
        return True
    minutes = (time.monotonic() - began) / 60
    print(f"| {tool} | {over} | {outcome.counts} | {len(outcome.findings) or 'none'} | {minutes:.1f} |", flush=True)
    if outcome.status or outcome.findings:
        print(*outcome.findings, outcome.out, sep="\n", file=sys.stderr)
    return not (outcome.status or outcome.findings)


if __name__ == "__main__":
    sys.exit(main())
