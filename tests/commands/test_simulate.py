"""`psframe simulate` trains on virtual ranks: with the bits of real ones, in a time of its own, and says so."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import msgspec
import pytest

from psframe.predict import machine, measure
from tests.helpers import launcher
from tests.helpers.forked import command
from tests.helpers.thinned import thinned
from tests.helpers.virtual import needs_simgrid
from tests.ranks.every_mode import MODES, SYNCHRONOUS, key

FAST = ("--machine", "knl-7250-mcdram", "--step-s", "0.01")
GENTLE = "optimizer={name: sgd, lr: 0.02, momentum: 0.5}"


def simulated(config, *arguments):
    """Return the records of the one run of a simulation, and what the command has said."""
    ended = command("psframe.virtual", config, *FAST, *arguments)
    assert ended.returncode == 0, ended
    paths = [line.rpartition(": ")[2] for line in ended.stdout.splitlines() if line.startswith("simulated on")]
    return [records(path) for path in paths], ended.stdout


def records(path):
    return [json.loads(line) for line in open(f"{path}/metrics.jsonl")]


@pytest.mark.parametrize(
    "mode", thinned(["sync={mode: allreduce}", "sync={mode: sync_ps}", *map(key, SYNCHRONOUS)], (1, 4))
)
def test_synchronous_run_has_the_bits_of_real_ranks(config, tmp_path, mpich, mode):
    (found,), _ = simulated(config, "--ranks", 4, mode, GENTLE)
    ended = launcher.train(mpich, 4, config, "--quiet", mode, GENTLE, f"record.dir={tmp_path / 'real'}")
    assert ended.status == 0, ended
    (real,) = (tmp_path / "real").iterdir()
    assert [r["params_sha256"] for r in found] == [r["params_sha256"] for r in records(real)]


#: ranks compute in the same memory, but for those that meet within a step
LAYERS = (
    ("sync.mode=allreduce", "model=tests.helpers.tiny:meeting"),
    ("sync.mode=allreduce", "model=tests.helpers.tiny:residual", "train.precision=bf16"),
    ("sync.mode=sync_ps", "nn.kernels=winograd", "augment={crop: 2, flip: both}"),
    ("sync.mode=allreduce", "train.reproducible=any_workers", "train.global_batch=24"),
    ("sync={mode: allreduce, balance: speed}", "train.reproducible=any_workers", "train.global_batch=24"),
)


@pytest.mark.parametrize("keys", thinned([(keys,) for keys in LAYERS], (1, 4)))
def test_ranks_compute_as_if_their_memory_was_their_own(config, tmp_path, mpich, keys):
    (found,), _ = simulated(config, "--ranks", 3, *keys, GENTLE)
    ended = launcher.train(mpich, 3, config, "--quiet", *keys, GENTLE, f"record.dir={tmp_path / 'real'}")
    assert ended.status == 0, ended
    (real,) = (tmp_path / "real").iterdir()
    assert [r["params_sha256"] for r in found] == [r["params_sha256"] for r in records(real)]


@pytest.mark.parametrize(("mode", "n_nodes"), thinned(list(product(MODES, (1, 2))), (1, 2, 7, 9, 13, 16, 25)))
def test_every_mode_trains_and_counts(config, mode, n_nodes):
    if "hogwild" in mode and "dogwild" not in mode and n_nodes > 1:
        pytest.skip("hogwild is for one node")
    (found,), said = simulated(config, "--ranks", 5, "--nodes", n_nodes, key(mode), GENTLE)
    assert [record["epoch"] for record in found] == [1, 2]
    for record in found:
        assert record["simulated"] == "knl-7250-mcdram"
        assert (record["n_ranks"], record["n_nodes"]) == (5, n_nodes)
        assert record["epoch_s"] > 0.01
        assert sum(record["staleness"].values()) > 0
    assert "accuracy" in said


def test_same_seed_gives_the_same_run(config):
    keys = ("--ranks", 6, "sync.mode=async_ps", GENTLE)
    (first,), _ = simulated(config, *keys, "--seed", 3)
    (again,), _ = simulated(config, *keys, "--seed", 3)
    (other,), _ = simulated(config, *keys, "--seed", 4)
    told = [[(r["params_sha256"], r["epoch_s"], r["wait_s"], r["staleness"]) for r in run] for run in (first, again)]
    assert told[0] == told[1]
    assert [r["epoch_s"] for r in other] != [r["epoch_s"] for r in first]


def test_slow_rank_delays_those_who_wait_for_it(config):
    keys = ("--ranks", 4, GENTLE, "dataset.samples=240")
    seconds = {
        (mode, slow): sum(r["epoch_s"] for r in simulated(config, *keys, f"sync.mode={mode}", *slow)[0][0])
        for mode in ("sync_ps", "async_ps")
        for slow in ((), ("--slow", "1:4"))
    }
    late = {mode: seconds[mode, ("--slow", "1:4")] / seconds[mode, ()] for mode in ("sync_ps", "async_ps")}
    assert late["sync_ps"] == pytest.approx(5, rel=0.15)  # each step takes its own time and four more
    assert late["async_ps"] < 2


@pytest.mark.parametrize("mode", thinned(["allreduce", "sync_ps", "async_ps"], (0, 2)))
def test_ranks_die_when_they_are_to(config, mode):
    keys = ("--ranks", 4, "--step-s", 1, f"sync.mode={mode}", GENTLE)  # an epoch has at least two steps
    (found,), _ = simulated(config, *keys, "--lose", "2:0.5,3:2.5")
    assert [record["epoch"] for record in found] == [1, 2]
    assert [loss["ranks"] for record in found for loss in record["lost"]] == [[2], [3]]
    assert found[-1]["n_ranks"] == 2
    pauses = [loss["pause_s"] for record in found for loss in record["lost"]]
    assert all(0 < pause_s < 2 for pause_s in pauses)  # until those that compute have noticed it


def test_numbers_of_ranks_are_runs_of_their_own(config):
    found, said = simulated(config, "--ranks", "2,3", GENTLE)
    assert [run[0]["n_ranks"] for run in found] == [2, 3]
    assert len([line for line in said.splitlines() if line.strip().startswith(("2 ", "3 "))]) == 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--ranks", "0"), "--ranks must be whole numbers"),
        (("--nodes", "9", "--ranks", "4"), "--nodes must have a rank each, got 9 for 4"),
        (("--slow", "7:2", "--ranks", "4"), "--slow must name one of 4 rank(s)"),
        (("--slow", "x", "--ranks", "4"), "--slow must name one of 4 rank(s)"),
        (("--slow", "0:nan", "--ranks", "1"), "got '0:nan'; give 0:4.0, say"),
        (("--lose", "4:1", "--ranks", "4"), "--lose must name ranks of 4, each once"),
        (("--lose", "1:2,1:3", "--ranks", "4"), "got '1:3'; give 3:2.5, say"),
        (("--lose", "0:-1", "--ranks", "4"), "--lose must name ranks of 4"),
        (("--lose", "0:1,1:1", "--ranks", "2"), "--lose must leave a rank, got all 2"),
        (
            ("--lose", "0:0.005", "--ranks", "3", "sync.mode=async_ps", GENTLE),
            "rank 0 has died, which keeps the parameters",
        ),
        (("--lose", "1:1", "--ranks", "3", "sync.mode=dogwild", GENTLE), "a sync.mode that can do without a rank"),
        (("--link", "string"), "link"),
        (("--check",), "--check must have the profile of this machine"),
        (("sync.mode=nonsense",), "sync.mode"),
        (("sync.mode=hogwild", "--ranks", "4", "--nodes", "2"), "hogwild must have all ranks on one node"),
    ],
)
def test_mistake_is_told_once(config, words, told):
    ended = command("psframe.virtual", config, *FAST, *words)
    assert ended.returncode == 2, ended
    assert told in ended.stderr
    assert "Traceback" not in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1, ended.stderr


def test_check_trains_the_same_and_keeps_both_times(config, tmp_path):
    profile = str(tmp_path / "here.yaml")
    machine.write(profile, msgspec.structs.replace(machine.read("epyc-7763-dual"), title=measure.this()))
    words = (config, "--machine", profile, "--ranks", "2", "sync.mode=easgd", GENTLE, "--check")
    ended = command("psframe.virtual", *words)
    assert ended.returncode == 0, ended
    (kept,) = machine.read(profile).simulations
    assert (kept.ranks, kept.hosts) == (2, 1)
    assert kept.what.endswith("easgd shared")
    assert kept.predicted_s > 0 < kept.measured_s
    (row,) = [line for line in ended.stdout.splitlines() if kept.what in line]
    assert f"{kept.error:+.0%}" in row
    assert "error on 1 measured epochs of this machine" in ended.stdout
    assert "corrected by all others" in ended.stdout
    assert machine.read(profile).checks == []
    for more, told in (
        (("--step-s", "1"), "got --step-s"),
        (("--lose", "1:1"), "got --lose"),
        (("--slow", "1:1"), "got --slow"),
        (("--nodes", "2"), "2, got 1"),
    ):
        refused = command("psframe.virtual", *words, *more)
        assert refused.returncode == 2
        assert told in refused.stderr
        told_of = [line for line in refused.stderr.splitlines() if line.startswith("psframe: ")]
        assert len([line for line in told_of if "warning" not in line]) == 1  # other tests are at work


@needs_simgrid
@pytest.mark.parametrize("keys", thinned(["allreduce", "sync_ps collective=buffer", "async_ps", "easgd"], (0, 2)))
def test_simgrid_agrees_on_the_messages_of_a_run(config, keys):
    mode, *others = keys.split()
    _, said = simulated(config, "--ranks", 6, "--nodes", 3, "--simgrid", f"sync.mode={mode}", GENTLE, *others)
    told = re.search(r"links: ([\d,]+) messages from node to node, .* none is more than ([\d.]+)% apart", said)
    assert int(told[1].replace(",", "")) > 20
    assert float(told[2]) < 3


def test_simgrid_must_be_there(config, monkeypatch):
    monkeypatch.setenv("PSFRAME_SIMGRID", "/nowhere/python")
    ended = command("psframe.virtual", config, *FAST, "--simgrid")
    assert ended.returncode == 2
    told = "got PSFRAME_SIMGRID='/nowhere/python', which has none; install python3-simgrid (Debian), or give"
    assert f"--simgrid must find a Python with SimGrid's module, {told}" in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1


def test_machine_must_be_named(config):
    ended = command("psframe.virtual", config)
    assert ended.returncode == 2
    assert "--machine must name a profile" in ended.stderr


def test_numbers_of_ranks_that_fail_hide_no_other(config):
    ended = command("psframe.virtual", config, *FAST, "--ranks", "4,2", "sync={mode: sync_ps, backup_workers: 2}")
    assert ended.returncode == 2
    assert "simulated on knl-7250-mcdram" in ended.stdout
    assert ended.stderr.startswith("psframe: 2 ranks: sync.backup_workers must be fewer than the workers, got 2 of 1")
    assert len(ended.stderr.strip().splitlines()) == 1


def test_simulations_end_with_the_command(config, tmp_path):
    words = [sys.executable, "-m", "psframe.virtual", config, *FAST, "--ranks", "4,6", "train.epochs=100000", GENTLE]
    process = subprocess.Popen(words, cwd=launcher.ROOT, stderr=subprocess.PIPE, text=True)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    until = time.monotonic() + 120
    while not [*(tmp_path / "runs").glob("*/metrics.jsonl")] and time.monotonic() < until:
        time.sleep(0.1)
    begun = children.read_text().split()
    assert len(begun) == min(2, len(os.sched_getaffinity(0)))
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, err
    assert "Traceback" not in err
    assert not [pid for pid in begun if Path(f"/proc/{pid}").exists()]
