"""The command ``psframe check``: it judges a config on a machine without MPI, as a run over ranks would."""

import json
import os
import subprocess
import sys

import pytest

from tests.helpers.launcher import ROOT

TINY = """\
model: tests.helpers.tiny:build
dataset: {name: synthetic, shape: [1, 6, 6], classes: 3, samples: 60}
train: {epochs: 2, batch_size: 8}
"""
ANY = ["train.reproducible=any_workers", "train.global_batch=16"]


@pytest.fixture
def check(tmp_path):
    """Run the command where mpi4py cannot be imported; a config is TINY unless it is named."""
    (tmp_path / "mpi4py.py").write_text('raise ImportError("there is no MPI")\n')
    (tmp_path / "tiny.yaml").write_text(TINY)

    def run(*words, config=tmp_path / "tiny.yaml"):
        return subprocess.run(
            [sys.executable, "-m", "psframe", "check", str(config), *map(str, words)],
            cwd=ROOT, capture_output=True, text=True, timeout=120,
            env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        )  # fmt: skip

    return run


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_config_of_this_checkout_is_sound(check, path):
    ended = check(config=path)
    if "does not exist" in ended.stderr or "not installed" in ended.stderr:
        pytest.skip(f"no data: {ended.stderr.strip()}")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith(f"{path} is sound: ")
    if "lenet" in path.read_text():
        assert "lenet (431,080 parameters)" in ended.stdout


def test_verdict_is_one_line(check, tmp_path):
    ended = check("-n", 4, "sync.server=colocated")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("\n") == 1
    words = " on synthetic (60 training and 12 test samples), sync_ps over shared, 4 workers on 4 ranks\n"
    assert ended.stdout.startswith(f"{tmp_path / 'tiny.yaml'} is sound: tests.helpers.tiny:build (")
    assert ended.stdout.endswith(words)


def test_keys_without_effect_are_named(check):
    ended = check("sync.mode=async_ps", "sync.servers=2", "collective=buffer", "train.blocks=4")
    assert ended.returncode == 0, ended.stderr
    names = [line.removeprefix("# not used by this choice: ") for line in ended.stdout.splitlines()[1:]]
    assert names == ["sync.servers", "collective", "train.blocks"]


def test_json_has_the_facts(check):
    found = json.loads(check("--json", "-n", 3, "sync.servers=2", "collective=buffer").stdout)
    assert found["sound"]
    assert (found["n_ranks"], found["n_workers"], found["n_servers"]) == (3, 1, 2)
    assert (found["shape"], found["n_classes"], found["collective"]) == ([1, 6, 6], 3, "buffer")
    ended = check("--json", "train.epochs=0")
    assert ended.returncode == 2
    found = json.loads(ended.stdout)
    assert not found["sound"]
    assert ended.stderr == f"psframe: {found['mistake']}\n"


def test_config_may_build_on_another(check, tmp_path):
    (tmp_path / "above.yaml").write_text("base: tiny.yaml\nsync: easgd\n")
    assert "easgd" in check(config=tmp_path / "above.yaml").stdout


MISTAKES = {
    "key": (["trian.epochs=1"], "trian is no key"),
    "type": (["train.epochs=many"], "train.epochs must be a whole number"),
    "strategy": (["sync=easgdd"], "there is no 'easgdd'"),
    "strategy's key": (["optimizer.lr=0"], "optimizer.lr must be"),
    "codec": (["collective={name: buffer, compression: zip}"], "there is no 'zip'"),
    "store": (["sync={mode: easgd, store: shelf}"], "there is no 'shelf'"),
    "placement": (["placement.data=tests.helpers.tiny:build"], "placement.data"),
    "data": (["dataset={name: idx, path: /no/such}"], "/no/such"),
    "dataset that is none": (["dataset=tests.helpers.wrong:nothing"], "tests.helpers.wrong"),
    "model for other data": (["model=har_cnn"], "har_cnn"),
    "combination": (["sync.mode=local_sgd", *ANY], "any_workers"),
    "combination of a cut network": (["parallel.pipeline=2", "sync=easgd"], "all replicas step together"),
    "global batch": (["train.reproducible=any_workers"], "train.global_batch"),
    "stages": (["parallel.pipeline=64"], "parallel.pipeline must leave a layer for every stage"),
    "convolutions": (["parallel.model=2", "parallel.convolutions=data", "-n", 3], "must divide the number of ranks"),
    "grid": (["parallel.pipeline=2", "-n", 3], "must divide the number of ranks, 3"),
    "workers": (["-n", 9, *ANY], "a block for every worker"),
    "few ranks for servers": (["-n", 2, "sync.servers=2"], "sync.servers must leave a worker"),
    "few ranks for backups": (["-n", 2, "sync.backup_workers=1"], "sync.backup_workers must be fewer"),
    "more workers than samples": (["-n", 99], "60 samples for 98 workers"),
    "slow rank": (["-n", 2, "fault.slow_rank=0"], "fault.slow_rank"),
    "crash": (["fault.crash_at=lunch"], "fault.crash_at"),
    "number of ranks": (["-n", "2,4"], "-n must be a number of ranks, got '2,4'"),
    "file": (["base=x"], "base must stand in a config's file"),
}


@pytest.mark.parametrize(("words", "said"), MISTAKES.values(), ids=MISTAKES)
def test_mistake_is_told_in_one_sentence(check, words, said):
    ended = check(*words)
    assert ended.returncode == 2, ended
    assert ended.stderr.count("\n") == 1
    assert said in ended.stderr
    assert ended.stdout == ""


def test_rules_depend_on_the_number_of_ranks(check):
    """A rank that is alone exchanges with none, so rules of exchanges do not hold for it."""
    codec = ["sync.servers=2", "collective=shared"]
    assert check(*codec).returncode == 2
    assert check(*codec, "-n", 1).returncode == 0


def test_schema_is_json(check):
    found = json.loads(check("--schema").stdout)
    assert found["$schema"].endswith("2020-12/schema")
    assert found["properties"]["train"]["properties"]["epochs"]["default"] == 5
