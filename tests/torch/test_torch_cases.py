"""Every case of tests/torch over real ranks of the backend "psframe": one job for each number of ranks.

The default suite has few ranks and some tens of examples of a case, the long suites more of both.
"""

import json
from functools import cache
from typing import Any

import pytest

from tests.helpers import seeds, torchrun
from tests.helpers.suite import IS_FULL
from tests.torch.harness import LARGEST, cases

pytest.importorskip("torch", reason="PyTorch, whose backend this is, is not installed: pip install -e .[torch]")

CASES = cases()
#: ranks that the default suite has
FEW = (2, 5)
LONGEST_FULL_S = 3600
LONGEST_S = LONGEST_FULL_S if IS_FULL else 1500
MAX_JOBS = 6  # of a number of ranks, where cases end theirs

PARAMETERS = [
    pytest.param(n, name, id=f"{n}-{name}", marks=[pytest.mark.full] * (case.is_full or n not in FEW))
    for n in sorted({n for case in CASES.values() for n in case.ranks}, reverse=True)
    for name, case in CASES.items()
    if n in case.ranks
]


def read(report) -> dict[str, dict[str, Any]]:
    """Return the outcome of each case; of one that did not end there may be a line of each rank."""
    found: dict[str, dict[str, Any]] = {}
    for line in map(json.loads, report.read_text().splitlines() if report.exists() else ()):
        line["errors"] += found.get(line["case"], {}).get("errors", [])
        found[line["case"]] = line
    return found


@pytest.fixture(scope="session")
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """Return what runs all chosen cases at a number of ranks, once: their outcomes, what was said, and the seed."""

    @cache
    def run(n: int) -> tuple[dict[str, dict[str, Any]], str, int]:
        folder = tmp_path_factory.mktemp(f"torch-{n}")
        report, chosen = folder / "report.jsonl", folder / "chosen"
        items = [item.callspec.params for item in request.session.items if item.originalname == "test_case_over_ranks"]
        left = [one["name"] for one in items if one["n"] == n]
        seed = seeds.seeded(f"torch cases of {n}").randrange(2**32)
        results, story = {}, ""
        alone = [[name] for name in left if CASES[name].is_alone]
        jobs = [[name for name in left if not CASES[name].is_alone], *alone]
        for _ in range(MAX_JOBS + len(alone)):
            if not jobs:
                break
            chosen.write_text("\n".join(jobs[0]))
            args = ["-m", "tests.torch.harness", report, "psframe", seed, f"@{chosen}"]
            ended = torchrun.forked(n, args, LONGEST_S if n <= LARGEST else LONGEST_FULL_S)
            state = "timed out" if ended.timed_out else f"ended with {ended.status}"
            story += f"ranks {state}\n{ended.out}\n{ended.err}\n"
            results = read(report)
            rest = [name for name in jobs[0] if name not in results]
            is_useless = ended.timed_out or len(rest) == len(jobs[0])  # the same would come again
            jobs[:1] = [rest] if rest and not is_useless else []
        return results, story, seed

    return run


@pytest.mark.parametrize(("n", "name"), PARAMETERS)
def test_case_over_ranks(n, name, outcomes):
    results, story, seed = outcomes(n)
    print("by hand:", *torchrun.command(n, ["-m", "tests.torch.harness", "REPORT", "psframe", seed, name]))
    assert name in results, f"{name} did not come to an end: {story}"
    errors, skipped = results[name]["errors"], results[name]["skipped"]
    assert not errors, "\n".join(errors)
    if skipped:
        pytest.skip(skipped)


@pytest.mark.full
@pytest.mark.parametrize("n", [2, 3])
def test_cases_hold_for_gloo(n, tmp_path):
    """What they promise is PyTorch's own, but for the order of sums and what is marked as psframe's alone."""
    seed = seeds.seeded("cases of gloo").randrange(2**32)
    ended = torchrun.run(n, ["-m", "tests.torch.harness", tmp_path / "report", "gloo", seed], LONGEST_FULL_S)
    found = read(tmp_path / "report")
    wrong = [error for outcome in found.values() for error in outcome["errors"]]
    assert not wrong, "\n".join(wrong)
    assert ended.status == 0
    assert len(found) == len([case for case in CASES.values() if n in case.ranks])


WRONG = """
import sys
import torch
import torch.distributed as dist
from tests.torch import harness

right = dist.all_reduce

def wrong(tensor, *args, **kwargs):
    work = right(tensor, *args, **kwargs)
    if HOW == "raises" and dist.get_rank() == 1 and tensor.numel() > 100:
        raise RuntimeError("on purpose")
    if HOW == "changes" and dist.get_rank() == 1 and tensor.numel() > 100:
        if work:
            work.wait()
        tensor.view(-1)[7] = 0
    return work

dist.all_reduce, harness.FAILED_S = wrong, 2
if __name__ == "__main__":
    harness.main(*sys.argv[1:])
"""


@pytest.mark.full
@pytest.mark.parametrize("how", ["changes", "raises"])
def test_wrong_backend_is_found_and_its_example_repeated(how, tmp_path):
    """On one rank of two, of which the others must not wait for ever."""
    script = tmp_path / "wrong.py"
    script.write_text(f"HOW = {how!r}\n{WRONG}")
    name, report = "collectives.many_allreduces_go_at_once", tmp_path / "report"
    found = []
    for only in (name, None):
        report.unlink(missing_ok=True)
        only = only or found[0].partition("gloo 1 ")[2].partition(")")[0]  # as the failure says
        ended = torchrun.forked(2, [script, report, "gloo", 1, only], PYTHONPATH=str(torchrun.ROOT))
        assert not ended.timed_out
        found = read(report)[name]["errors"]
        assert any("rank 1" in error for error in found), found
        assert ("on purpose" in str(found)) == (how == "raises")
        assert ended.status == (how == "raises")
        assert name + "@" in found[0]
