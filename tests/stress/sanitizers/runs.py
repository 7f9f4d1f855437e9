"""What runs under which tool, and what came of it."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass

from tests.helpers.launcher import ROOT
from tests.helpers.suite import DEFAULT
from tests.stress.sanitizers.instrumented import Instrumented

#: tests of the compiled parts that need neither Numba nor other processes
QUICK = (
    "unit/compiled/test_elementwise",
    "unit/optim/test_rules",
    "unit/optim/test_average",
    "unit/compiled/test_random",
    "unit/train/test_sampling",
    "unit/collectives/test_order",
    "unit/collectives/test_segments",
)
#: what these reach
QUICK_MODULES = ("_random", "_elementwise", "_batch")
#: all tests that reach compiled parts, also in ranks over each MPI
FULL = (
    *QUICK,
    "unit/train/test_augment",
    "unit/cluster/test_gates",  # whose protocol the stress programs have under ThreadSanitizer in the default suite
    "unit/cluster/test_node_gather",
    "unit/cluster/test_keeper",
    "unit/cluster/test_watchdog",
    "unit/doctor/test_live",
    "unit/record/test_flight",
    "unit/record/test_flight_steps",
    "unit/record/test_library_warnings",
    "unit/record/test_log",
    "unit/memory/test_budget",
    "unit/memory/test_placement",
    "unit/memory/test_weighted",
    "unit/memory/test_by_tensor",
    "unit/memory/test_mover",
    "stress/test_leaks",
    "unit/collectives/test_codecs",
    "unit/compiled/test_numa",
    "unit/datasets/test_datasets",
    "unit/nn/test_network",
    "unit/nn/test_threads",
    "unit/nn/test_torch_module",
    "unit/optim/test_updater",
    "unit/virtual/test_loans",
    "unit/virtual/test_pages",
    "commands/test_guard::test_checksum_changes_with_any_flipped_bit",
    "commands/test_guard::test_checksum_changes_where_numbers_change_places",
    "commands/test_guard::test_number_that_is_not_finite_is_found",
    "commands/test_shared",
    "commands/test_bench_collectives",
    "ranks/test_ranks",
)

#: these put something else where the sanitizers' library is loaded from, or start valgrind
EXCEPT = "not wrong_result_fails_the_benchmark and not methods_but_c_are_measured and not valgrind"

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
    """Run tests in the copy; a report in any process, also of ranks whose words nobody reads, is a finding."""
    tests = [f"tests/{file}.py{colons}{test}" for file, colons, test in (name.partition("::") for name in names)]
    copy.forget()
    ended = copy.run(*PYTEST, "-m", DEFAULT, "-k", EXCEPT, *tests, timeout_s=timeout_s)
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
