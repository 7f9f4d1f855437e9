"""Every case of tests/ranks over real ranks: one mpirun for each MPI and number of ranks.

The default suite has each case at those of ``counts``; those that need no processes are in test_virtual_ranks.py. The
long suites have all of both; with Open MPI in the default suite's combinations, since all of them add nothing about
MPI, and its ranks wait beside each other at length.
"""

import json
import subprocess
import sys
from functools import cache
from typing import Any

import pytest

from tests.helpers import launcher
from tests.helpers.suite import IS_FULL
from tests.ranks.harness import LARGEST, cases, counts

CASES = cases()
COUNTS = {mpi: counts(mpi) for mpi in ("mpich", "openmpi")}
LONGEST_S, LONGEST_FULL_S = 600, 1800  # of a case, the compiling that a job begins with included
MAX_JOBS = 4  # of an MPI and a number of ranks, where cases fail


PARAMETERS = [
    pytest.param(
        mpi,
        n,
        name,
        id=f"{mpi}-{n}-{name}",
        marks=[pytest.mark.each_mpi, *[pytest.mark.full] * (COUNTS[mpi].get(name) != n)],
    )
    for n in sorted({n for case in CASES.values() for n in case.ranks}, reverse=True)
    for mpi in COUNTS
    for name, case in CASES.items()
    if n in case.ranks
]


@pytest.fixture(scope="session")
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """Return what runs all chosen cases of an MPI and a number of ranks, once: their outcomes, and what mpirun said."""

    @cache
    def run(name: str, n: int) -> tuple[dict[str, dict[str, Any]], str]:
        mpi = launcher.installed(name)
        if mpi is None:
            pytest.skip(f"no {name} here: bash launch/test.sh makes an environment with it")
        folder = tmp_path_factory.mktemp(f"{name}-{n}")
        report, chosen = folder / "report.jsonl", folder / "chosen"
        items = [item.callspec.params for item in request.session.items if item.originalname == "test_over_ranks"]
        left = [one["name"] for one in items if (one["mpi"], one["n"]) == (name, n)]
        few = n <= LARGEST and not IS_FULL
        timeout_s, results, story = LONGEST_S if few else LONGEST_FULL_S, {}, ""
        for _ in range(MAX_JOBS):  # a job ends with a case that fails while ranks wait for each other
            chosen.write_text("\n".join(left))
            words = ["-m", "tests.ranks.harness", str(report), f"@{chosen}"]
            env = {"PSFRAME_TESTS": ""} if name == "openmpi" else {}
            ended = launcher.run(mpi, n, words, timeout_s, report=report, **env)
            lines = report.read_text().splitlines() if report.exists() else []
            results = {r["case"]: r for r in map(json.loads, lines)}
            state = "timed out" if ended.timed_out else f"ended with {ended.status}"
            story += f"mpirun {state}\n{ended.out}\n{ended.err}\n"
            n_left, left = len(left), [case for case in left if case not in results]
            if not left or ended.timed_out or len(left) == n_left:
                break
        return results, story

    return run


@pytest.mark.parametrize(("mpi", "n", "name"), PARAMETERS)
def test_over_ranks(mpi, n, name, outcomes):
    results, story = outcomes(mpi, n)
    installed = launcher.installed(mpi)
    print("by hand:", *installed.command(n, ["-m", "tests.ranks.harness", "REPORT", name]))
    assert name in results, f"{name} did not come to an end: {story}"
    errors, skipped = results[name]["errors"], results[name]["skipped"]
    assert not errors, "\n".join(errors)
    if skipped:
        pytest.skip(skipped)


def test_cases_need_no_pytest():
    """Ranks of Open MPI have an environment without it."""
    text = "import sys; sys.modules['pytest'] = None; from tests.ranks.harness import cases; print(len(cases()))"
    ended = subprocess.run([sys.executable, "-c", text], cwd=launcher.ROOT, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) == len(CASES)


SLOW = """
import sys
import time

for _ in range(int(sys.argv[2])):
    with open(sys.argv[1], "a") as report:
        report.write("a case ended")
    time.sleep(1)
time.sleep(float(sys.argv[3]))
"""


@pytest.mark.parametrize(("n_reports", "silence", "timed_out"), [(13, 0, False), (1, 60, True)])
def test_job_may_last_while_it_reports(n_reports, silence, timed_out, tmp_path):
    here = launcher.installed("mpich") or pytest.skip("no mpich here: bash launch/test.sh makes an environment with it")
    report = tmp_path / "report"
    ended = launcher.run(here, 1, ["-c", SLOW, report, n_reports, silence], timeout_s=10, report=report)
    assert ended.timed_out == timed_out, ended


FAILING = """
import sys
from contextlib import nullcontext
from tests.ranks import harness
from tests.ranks.nodes import own_network
from tests.ranks.training import folder

WITHIN = {"nothing": nullcontext, "folder": folder, "own_network": lambda world: own_network(world, 0)}

@harness.ranks(2)
def fails_on_one(world):
    with WITHIN[sys.argv[2]](world):
        assert world.rank != int(sys.argv[3]), "on purpose"
        world.recv()  # which no barrier of the other answers

harness.FAILED_S, harness.cases = 1, lambda: {"fails_on_one": fails_on_one}
harness.main(sys.argv[1])
"""


@pytest.mark.parametrize(
    ("mpi", "within", "failing"),
    [
        ("mpich", "nothing", 1),
        ("openmpi", "nothing", 1),
        ("mpich", "folder", 0),
        ("mpich", "folder", 1),
        ("mpich", "own_network", 1),
    ],
)
def test_case_that_fails_on_one_rank_ends_the_job(mpi, within, failing, tmp_path):
    """The other waits for it in MPI, which would be for ever; also within what the helpers put around cases."""
    here = launcher.installed(mpi) or pytest.skip(f"no {mpi} here: bash launch/test.sh makes an environment with it")
    words = ["-c", FAILING, str(tmp_path / "report"), within, str(failing)]
    ended = launcher.run(here, 2, words, TMPDIR=str(tmp_path))
    assert ended.status != 0
    assert not ended.timed_out
    (line,) = map(json.loads, (tmp_path / "report").read_text().splitlines())
    if line["skipped"]:
        pytest.skip(line["skipped"])
    assert "on purpose" in line["errors"][0]
    if failing == 0:
        assert not [*tmp_path.glob("psframe-test-*")]
