"""What chooses tests, and what a failure says: parts of the suite that no other test would miss."""

import ast
import os
import shutil
import signal
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest

from tests import changed
from tests.helpers import failures, live, suite
from tests.helpers.launcher import ROOT
from tests.mutants.__main__ import TABLE, killers
from tests.ranks import harness

#: a launch/env.sh whose first environment is there, and whose second takes for ever
INSTALLING = """set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
environment() { [ "$1" = .venv ] || { echo $BASHPID; while :; do sleep 60; done; }; }
"""

MUTANTS = sorted((ROOT / "tests/mutants").glob("*.patch"))
KILLERS = killers(TABLE)
COUNTS = {mpi: harness.counts(mpi) for mpi in ("mpich", "openmpi")}
COUNTED = COUNTS["mpich"]["contract.bytes_are_counted"]
#: a changed file: tests that must be chosen
CHOSEN = {
    "README.md": "tests/unit/test_docs.py",
    "docs/reference/promises.md": "tests/unit/test_promises.py",
    "docs/explanation/sync.md": "tests/commands/test_examples.py",
    "configs/fashion_allreduce.yaml": "tests/commands/test_accuracy.py",
    "launch/containers.sh": "tests/hosts/test_containers.py",
    "tests/knl/conftest.py": "tests/knl/test_modes.py",
    "tests/helpers/denied.py": "tests/unit/memory/test_budget.py",
    "tests/helpers/dying.py": "tests/commands/test_any_workers.py",
    "tests/helpers/codec_digest.py": "tests/unit/collectives/test_codecs.py",
    "tests/stress/ranks.h": "tests/stress/test_gates_stress.py",
    "tests/fuzz/corpus/latest/nul": "tests/fuzz/test_targets.py",
    "tests/unit/nn/test_layers.py": "tests/unit/nn/test_layers.py",
    "psframe/cluster/gates.py": "tests/unit/cluster/test_gates.py",
    "psframe/compiled/_sync.h": "tests/unit/cluster/test_gates.py",
    "psframe/config/schema.py": "tests/unit/config/test_registry.py",
    "psframe/bench/peers.py": "tests/commands/test_bench_peers.py",
    "psframe/run.py": "tests/commands/test_supervisor.py",
    "psframe/report/style.css": "tests/commands/test_report.py",
    "models/torch_module.py": "tests/unit/nn/test_torch_module.py",
    "psframe/collectives/order.py": f"{changed.RANKS}::test_over_ranks[mpich-{COUNTED}-contract.bytes_are_counted]",
}


@pytest.mark.parametrize("path", CHOSEN)
def test_change_chooses_the_tests_of_what_was_changed(path, capsys):
    assert CHOSEN[path] in changed.chosen([path])
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    "path", ["tests/conftest.py", "tests/helpers/tiny.py", "tests/ranks/harness.py", "configs/quickstart.yaml"]
)
def test_change_behind_many_tests_asks_for_the_whole_suite(path, capsys):
    assert changed.chosen([path])
    assert capsys.readouterr().err == f"{path} is behind many tests: run the whole suite, too\n"


def test_change_of_one_module_leaves_slow_tests_out():
    for path in ("psframe/cluster/gates.py", "psframe/datasets/idx.py", "psframe/cluster/cluster.py"):
        assert not [test for test in changed.chosen([path]) if test.split("/")[1] in changed.SLOW]


@pytest.mark.parametrize(
    ("marks", "options"), [(("full",), "--full "), (("soak",), "--soak "), (("full", "soak"), "--soak "), ((), "")]
)
def test_failure_tells_what_runs_the_case_alone(marks, options):
    report = SimpleNamespace(sections=[])
    item = SimpleNamespace(nodeid="tests/a.py::test_b[c d]", get_closest_marker=lambda name: name in marks)
    failures.explain(item, report)
    assert ("to run this case alone", f"bash launch/test.sh {options}'tests/a.py::test_b[c d]'") in report.sections


def test_failure_shows_errors_that_a_launcher_has_talked_over():
    failures.forget()
    said = ["[rank1]: Traceback (most recent call last):", "[rank1]: a.DistBackendError: got 1", *["talk"] * 99, "end"]
    failures.said(1, "", "\n".join(said))
    lines = failures.SAID.pop().splitlines()
    assert lines[:2] == ["status 1", "stderr: [rank1]: a.DistBackendError: got 1"]
    assert lines[-1] == "stderr: end"
    assert len(lines) == 2 + failures.LAST_LINES


def test_cases_of_a_file_are_chosen_by_their_whole_names(tmp_path):
    name = "servers.bits_are_those_of_one_server"
    longer = {other for other in harness.cases() if other.startswith(name)}
    assert len(longer) > 1
    (tmp_path / "chosen").write_text(f"{name}\n")
    assert [*harness.chosen((f"@{tmp_path / 'chosen'}",))] == [name]
    assert {*harness.chosen((name,))} == longer
    assert harness.chosen(()) == harness.cases()


def test_report_of_cases_over_ranks_is_a_file(tmp_path):
    with pytest.raises(SystemExit, match="must be a file"):
        harness.main(str(tmp_path))


def test_tools_that_run_the_default_suite_select_as_its_command_does():
    """What soaks was once marked as the long suites are, and mutants would have been tried with hours of it."""
    assert f'select=(-m "{suite.DEFAULT}")\n' in (ROOT / "launch/test.sh").read_text()


def test_interrupted_installation_leaves_nothing_behind(tmp_path):
    (tmp_path / "launch").mkdir()
    shutil.copy(ROOT / "launch/test.sh", tmp_path / "launch")
    (tmp_path / "launch/env.sh").write_text(INSTALLING)
    pip = tmp_path / ".venv/bin/pip"
    pip.parent.mkdir(parents=True)
    pip.write_text("#!/bin/bash\ntrap 'exit 2' INT; echo $$; while :; do sleep 60; done\n")  # as pip: it ends by itself
    pip.chmod(0o755)
    script = subprocess.Popen(
        ["bash", "launch/test.sh"], cwd=tmp_path, stdout=subprocess.PIPE, start_new_session=True, preexec_fn=live.heed
    )
    installing = [psutil.Process(int(script.stdout.readline())) for _ in range(2)]
    os.killpg(script.pid, signal.SIGINT)  # as a terminal does; the second environment's is another group
    assert script.wait(60) == 130
    assert psutil.wait_procs(installing, 60)[1] == []
    assert not (tmp_path / ".venv/psframe-torch").exists()  # what was interrupted is not taken for missing


#: forks a child that is as its parent, and says its PID
FORKS = """
import os, time
child = os.fork()
if child:
    print(child, flush=True)
time.sleep(60)
"""


def test_child_of_rank_is_not_taken_for_it():
    words = [sys.executable, "-c", FORKS, "one.yaml"]
    rank = subprocess.Popen(words, stdout=subprocess.PIPE, env={**os.environ, "PMI_RANK": "1"})
    child = int(rank.stdout.readline())
    try:
        assert live.ranks_of("one.yaml") == [rank.pid]
    finally:
        os.kill(child, signal.SIGKILL)
        rank.kill()
        rank.communicate()


@pytest.mark.parametrize("patch", MUTANTS, ids=lambda path: path.stem)
def test_mutant_applies_to_the_checkout(patch):
    ended = subprocess.run(["git", "apply", "--check", str(patch)], cwd=ROOT, capture_output=True, text=True)
    if "not a git repository" in ended.stderr:
        pytest.skip("no checkout of git, which applies patches")
    assert ended.returncode == 0, ended.stderr
    assert patch.read_text().startswith("What is wrong: ")


@pytest.mark.parametrize("mutant", [path.stem for path in MUTANTS])
def test_mutant_is_killed_by_a_test_of_the_default_suite(mutant):
    """Cases over ranks may be at another number of them once others have come."""
    file, _, case = KILLERS[mutant].partition("::")
    function, _, values = case.rstrip("]").partition("[")
    (found,) = (
        node
        for node in ast.parse((ROOT / file).read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name == function
    )
    assert not any(ast.unparse(mark) == "pytest.mark.full" for mark in found.decorator_list)
    if file == changed.RANKS:
        mpi, n, name = values.split("-", 2)
        assert COUNTS[mpi][name] == int(n)


#: two files of tests, of which one ends the process that runs it
ENDING = {
    "conftest.py": "from tests.conftest import pytest_xdist_make_scheduler\n",
    "test_one.py": "import os\ndef test_before(): pass\ndef test_ends(): os._exit(3)\ndef test_behind(): pass\n",
    "test_two.py": "def test_beside(): pass\n",
}


@pytest.mark.full
def test_test_that_ends_its_worker_fails_once_and_all_others_run(tmp_path):
    for name, text in ENDING.items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadscope"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [*command, "--no-loadscope-reorder"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300
    )
    assert "1 failed, 3 passed" in ended.stdout, ended.stdout
