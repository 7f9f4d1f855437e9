"""Every case of tests/ranks, at every number of ranks it names, with each MPI; one mpirun for each (MPI, ranks)."""

import json
from functools import cache
from typing import Any

import pytest

from tests import launcher
from tests.ranks.harness import cases

CASES = cases()
RANKS = sorted({n for case in CASES.values() for n in case.ranks})
PARAMETERS = [
    pytest.param(mpi, n, name, id=f"{mpi}-{n}-{name}", marks=[pytest.mark.full] if n > 7 else [])
    for mpi in ("mpich", "openmpi")
    for n in RANKS
    for name, case in CASES.items()
    if n in case.ranks
]
LONGEST_S, LONGEST_FULL_S = 600, 1800


@pytest.fixture(scope="session")
def outcomes(tmp_path_factory: pytest.TempPathFactory):
    @cache
    def run(name: str, n: int) -> tuple[dict[str, dict[str, Any]], str]:
        mpi = launcher.installed(name)
        if mpi is None:
            pytest.skip(f"no {name} here: bash launch/test.sh makes an environment with it")
        report = tmp_path_factory.mktemp("ranks") / f"{name}-{n}.jsonl"
        timeout_s = LONGEST_S if n <= 7 else LONGEST_FULL_S
        ended = launcher.run(mpi, n, ["-m", "tests.ranks.harness", str(report)], timeout_s)
        lines = report.read_text().splitlines() if report.exists() else []
        state = "timed out" if ended.timed_out else f"ended with {ended.status}"
        return {r["case"]: r for r in map(json.loads, lines)}, f"mpirun {state}\n{ended.out}\n{ended.err}"

    return run


@pytest.mark.parametrize(("mpi", "n", "name"), PARAMETERS)
def test_over_ranks(mpi, n, name, outcomes):
    results, story = outcomes(mpi, n)
    assert name in results, f"{name} did not come to an end: {story}"
    errors, skipped = results[name]["errors"], results[name]["skipped"]
    assert not errors, "\n".join(errors)
    if skipped:
        pytest.skip(skipped)
