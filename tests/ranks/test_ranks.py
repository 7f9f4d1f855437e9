"""Every case of tests/ranks over real ranks: one mpirun for each MPI and number of ranks.

The default suite has each case at those of ``counts``; the long suites have all of both.
"""

import json
import subprocess
import sys
from functools import cache
from typing import Any

import pytest

from tests.helpers import launcher
from tests.ranks.harness import LARGEST, cases, counts

CASES = cases()
COUNTS = {mpi: counts(mpi) for mpi in ("mpich", "openmpi")}
LONGEST_S, LONGEST_FULL_S = 600, 1800


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
        asked = [item.callspec.params for item in request.session.items if item.originalname == "test_over_ranks"]
        chosen.write_text("\n".join(one["name"] for one in asked if (one["mpi"], one["n"]) == (name, n)))
        timeout_s = LONGEST_S if n <= LARGEST else LONGEST_FULL_S
        ended = launcher.run(mpi, n, ["-m", "tests.ranks.harness", str(report), f"@{chosen}"], timeout_s)
        lines = report.read_text().splitlines() if report.exists() else []
        state = "timed out" if ended.timed_out else f"ended with {ended.status}"
        return {r["case"]: r for r in map(json.loads, lines)}, f"mpirun {state}\n{ended.out}\n{ended.err}"

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
