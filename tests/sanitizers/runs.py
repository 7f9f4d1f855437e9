"""What runs under which tool, and what came of it."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass

from tests.launcher import ROOT
from tests.sanitizers.instrumented import Instrumented

#: tests of the compiled parts that need no Numba: a minute
QUICK = ("test_elementwise", "test_random", "test_sampling", "test_segments", "test_gates", "test_board")
#: all tests that reach compiled parts, also in ranks over each MPI
FULL = (
    *QUICK,
    "test_placement",
    "test_leaks",
    "test_codecs",
    "test_datasets",
    "test_network",
    "test_threads",
    "test_shared",
    "test_bench_collectives",
    "test_ranks",
)

#: these put something else where the sanitizers' library is loaded from, or start valgrind
EXCEPT = "not a_wrong_result_fails_the_benchmark and not without_mpicc_the_other_methods and not valgrind"

#: faulthandler gives signals a stack of their own, too small for AddressSanitizer to tell there where it was
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:faulthandler")


@dataclass(frozen=True)
class Outcome:
    """Of a run under a tool.

    Attributes
    ----------
    status : int
        Of pytest: 0 where all passed.
    counts : str
        As pytest puts them: ``79 passed, 6 skipped``.
    findings : list of str
        What the tool reported, of each process, or else the names of the tests that failed.
    out : str
        All that pytest printed.
    """

    status: int
    counts: str
    findings: list[str]
    out: str


def instrumented(copy: Instrumented, names: tuple[str, ...], timeout_s: float) -> Outcome:
    """Run test modules in the copy; a report in any process, also of ranks whose words nobody reads, is a finding."""
    files = [f"tests/{name}.py" for name in names]
    copy.forget()
    ended = copy.run(*PYTEST, "-m", "not full", "-k", EXCEPT, *files, timeout_s=timeout_s)
    return _outcome(ended, copy.found())


def watched(path: str, choice: str, marks: str, timeout_s: float) -> Outcome:
    """Run tests of the checkout that start a tool themselves; where one fails, the tool has found something."""
    command = [sys.executable, *PYTEST, path, "-k", choice, "-m", marks]
    ended = subprocess.run(command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, timeout=timeout_s)
    return _outcome(ended, re.findall(r"^(?:FAILED|ERROR) (\S+)", ended.stdout, re.MULTILINE))


def _outcome(ended: subprocess.CompletedProcess[str], findings: list[str]) -> Outcome:
    last = (ended.stdout.strip().splitlines() or [""])[-1]
    counts = re.sub(r" in [\d.]+s.*|, \d+ deselected|^=+ | =+$", "", last)
    return Outcome(ended.returncode, counts, findings, ended.stdout + ended.stderr)
