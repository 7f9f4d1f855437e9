"""The command ``psframe``: one door to all commands, a first run without a checkout, a folder to begin with."""

import os
import subprocess
import sys

import pytest

from psframe.bench.__main__ import BENCHES, OVER_RANKS
from psframe.bench.__main__ import main as bench
from psframe.starter import COMMANDS
from psframe.starter.completion import SHELLS, keys, script
from tests.helpers import launcher
from tests.helpers.launcher import ROOT


def psframe(*words, cwd=ROOT, **env):
    return subprocess.run(
        [sys.executable, "-m", "psframe", *map(str, words)], cwd=cwd, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
    )  # fmt: skip


def mpich():
    return launcher.installed("mpich") or pytest.skip("no mpich: bash launch/test.sh installs it")


def test_help_names_every_command():
    ended = psframe("--help")
    assert ended.returncode == 0
    assert all(f"  {name} " in ended.stdout for name in COMMANDS)


def test_version_is_the_packages():
    assert psframe("--version").stdout.startswith("psframe 0.")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_every_command_has_an_example(name):
    which = ["step"] if name == "bench" else []
    ended = psframe(name, *which, "--help")
    assert ended.returncode == 0, ended.stderr
    assert "example" in ended.stdout


@pytest.mark.parametrize("name", sorted({*BENCHES} - {*OVER_RANKS}))
def test_help_of_every_bench_has_an_example(name, capsys):
    with pytest.raises(SystemExit) as ended:
        bench([name, "--help"])
    assert not ended.value.code
    assert "example" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trian"], "psframe must be given a command, got 'trian'; did you mean 'train'?"),
        (["train", "-n", "0", "x.yaml"], "-n must be a number of ranks, got '0'"),
        (["train", "-n"], "-n must be a number of ranks, got 'nothing'"),
        (["quickstart", "-n", "2,4"], "-n must be a number of ranks, got '2,4'"),
        (["new"], "it names no folder"),
        (["new", "tests"], "psframe new must be given a folder that is empty, got 'tests'"),
        (["new", "README.md"], "psframe new must be given a folder that can be written, got 'README.md'"),
        (["completion", "tcsh"], "a shell must be named, got 'tcsh'"),
    ],
)
def test_mistakes_are_told_in_one_sentence(words, said):
    ended = psframe(*words)
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert said in ended.stderr


@pytest.mark.parametrize("words", [["quickstart"], ["train", "-n", "2", "configs/quickstart.yaml"]])
def test_launcher_that_is_not_there_is_told_in_a_sentence(words):
    ended = psframe(*words, PSFRAME_MPIRUN="/no/such/mpirun")
    assert ended.returncode == 2
    assert "a launcher must be a program, got '/no/such/mpirun'; mend PSFRAME_MPIRUN" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_commands_over_ranks_are_not_nested():
    ended = psframe("train", "-n", 2, "configs/quickstart.yaml", PMI_RANK="0")
    assert ended.returncode == 2
    assert "starts mpirun itself" in ended.stderr


def test_quickstart_trains_on_digits_that_come_with_psframe(tmp_path):
    mpich()
    ended = psframe("quickstart", "-n", 3, "train.epochs=2", "model=tests.helpers.tiny:build", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "on digits (1,442 training and 355 test samples)" in ended.stdout
    assert list((tmp_path / "runs").glob("quickstart-*"))


def test_new_folder_trains_with_all_its_parts(tmp_path):
    mpich()
    assert psframe("new", tmp_path / "mine").returncode == 0
    keys = ["collective=my_collective:Mine", "train.reproducible=none", "train.epochs=2"]
    ended = psframe("train", "-n", 3, "config.yaml", *keys, cwd=tmp_path / "mine")
    assert ended.returncode == 0, ended.stderr
    assert "my_model:model on my_data:data" in ended.stdout
    assert "over my_collective:Mine" in ended.stdout
    ended = psframe("new", tmp_path / "mine")
    assert ended.returncode == 2, "a folder in use was overwritten"


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (["psframe", "tr"], "train"),
        (["psframe", "bench", "st"], "step"),
        (["psframe", "train", "train.ep"], "train.epochs="),
    ],
)
def test_bash_completes(line, wanted):
    asked = f"COMP_WORDS=({' '.join(line)}); COMP_CWORD={len(line) - 1}; _psframe 2>/dev/null; echo ${{COMPREPLY[@]}}"
    said = subprocess.run(["bash", "-c", f"{script('bash')}\n{asked}"], capture_output=True, text=True, check=True)
    assert wanted in said.stdout.split()


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_knows_every_key(shell):
    assert psframe("completion", shell).stdout == script(shell)
    assert all(key in script(shell) for key in (*keys(), *COMMANDS))
