"""The commands that time a step and stragglers: they run, and tell what they were asked."""

import contextlib
import json
import os
import signal
import subprocess
import time

import numpy as np
import pytest

from psframe.bench.step import Witness
from psframe.optim import SGD
from tests.helpers import launcher
from tests.helpers.live import ranks_of
from tests.helpers.said import told
from tests.helpers.seeds import seeded
from tests.helpers.thinned import thinned

FORMS = (
    ["--collective", "shared,buffer,object,hierarchical"],
    ["--collective", "{name: shared, reducers: all, chunk_bytes: 4096}", "--optimizer", "adam", "--wait", "spin"],
    ["--collective", "{name: buffer, compression: topk}", "--mode", "allreduce", "--reproducible", "none"],
    ["--collective", "shared", "--server", "colocated", "--optimizer", "sgd", "--baselines", "none"],
)


@pytest.mark.parametrize("form", thinned(FORMS, (0, 1)), ids=" ".join)
def test_step_is_timed_and_counted(mpi, pool, tmp_path, form):
    path = tmp_path / "out.json"
    ended = pool(3, mpi).bench("step", "--size", "0.01,0.05", "--seconds", "0.01", "--json", str(path), *form)
    assert ended.status == 0, ended
    assert "0.05 MB, 3 ranks on 1 node(s)" in ended.out
    report = json.loads(path.read_text())
    assert [found["megabytes"] for found in report["sizes"]] == [0.01, 0.05]
    for found in report["sizes"]:
        assert found["stream_gbps"]["median"] > 0
        for name, row in found["methods"].items():
            assert 0 < row["ms"]["low"] <= row["ms"]["median"] <= row["ms"]["high"]
            assert (name in found["ratios"]) == ("bytes" not in row)
    if "sgd" in form:  # every rank a worker: three gradients and old parameters in, new ones out
        (row,) = report["sizes"][1]["methods"].values()
        assert row["bytes"] == (3 + 2) * 12_500 * 4 + 5 * 48  # with the zeros up to a cache line
        assert row["sent"] == 0


def test_stragglers_are_measured(mpi, pool, config, tmp_path):
    path = tmp_path / "out.json"
    asleep = ["--step-ms", "1"] if mpi.name == "mpich" else []
    ended = pool(3, mpi).bench("straggler", config, "--rounds", "1", "--json", str(path), *asleep)
    assert ended.status == 0, ended
    report = json.loads(path.read_text())
    assert list(report["modes"]) == [
        "sync_ps",
        "balance: speed",
        "backup_workers: 1",
        "staleness: 4",
        "async_ps",
        "easgd",
        "hogwild",
    ]
    for found in report["modes"].values():
        assert all(found[how]["samples_per_s"]["median"] > 0 for how in ("healthy", "slow", "pauses"))
    assert report["modes"]["async_ps"]["limit"] == pytest.approx((2 - 0.8) / 2)
    assert report["modes"]["hogwild"]["limit"] == pytest.approx((3 - 0.8) / 3)
    assert not (tmp_path / "runs").exists()


@pytest.mark.full
def test_recorder_and_those_who_look_are_measured(pool, config, tmp_path):
    path = tmp_path / "out.json"
    ended = pool(2).bench("recorder", config, "--rounds", "1", "--seconds", "0.1", "--json", str(path))
    assert ended.status == 0, ended
    report = json.loads(path.read_text())
    assert list(report["rows"]) == ["recorder", "psframe top", "psframe watch"]
    assert all(row["ratio"]["median"] > 0 for row in report["rows"].values())
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["step", "--size", "big"], ["--size must be megabytes", "'big'"]),
        (["step", "--collective", "shred"], ["'shred'", "'shared'"]),
        (["step", "--collective", "{name: shared, reducer: all}"], ["reducer", "reducers"]),
        (["step", "--baselines", "clasic"], ["--baselines", "'clasic'"]),
        (["step", "--json", "/no/such/file"], ["--json", "/no/such/file"]),
        (["recorder", "configs/quickstart.yaml", "--json", "/no/such/file"], ["--json", "/no/such/file"]),
        (["straggler", "configs/quickstart.yaml"], ["3 or more"]),
        (["recorder", "configs/quickstart.yaml", "--rounds", "0"], ["--rounds", "got 0 and 3"]),
        (["recorder", "configs/quickstart.yaml", "--of", "htop"], ["--of", "'htop'"]),
        (["straggler", "configs/quickstart.yaml", "--modes", "easgt"], ["--modes", "'easgt'"]),
    ],
    ids=lambda value: " ".join(value) if value[0] == "step" else "",
)
def test_mistakes_are_told_once(pool, arguments, words):
    small = ["--seconds", "0.01"] if arguments[0] == "step" else []
    ended = pool(2).bench(*arguments, *small)
    assert ended.status == 2, ended
    (line,) = told(ended)
    assert all(word in line for word in words), line


def test_bench_that_there_is_not_is_told_once(mpich):
    ended = launcher.run(mpich, 2, ["-m", "psframe.bench", "stop"])
    assert ended.status == 2, ended
    (line,) = told(ended)
    assert "'stop'" in line
    assert "step" in line


def test_wrong_parameter_is_noticed():
    one = Witness(SGD(lr=0.1, momentum=0.9), exact=True)
    one.step(2)
    params = np.full(100, one.params[0])
    one.check(params)
    params[7] = np.nextafter(params[7], np.float32(1))
    with pytest.raises(AssertionError, match="1 parameters are wrong, the first is 7"):
        one.check(params)


@pytest.mark.parametrize("seconds", [5, pytest.param(600, marks=pytest.mark.soak)])
@pytest.mark.parametrize("collective", thinned(["shared", "{name: shared, reducers: all, chunk_bytes: 65536}"], (1,)))
def test_ranks_stopped_and_continued_neither_hang_nor_sum_wrong(mpi, seconds, collective):
    """After each few steps the command compares all parameters with one that was updated by hand."""
    marker = f"--seconds={seconds}"
    arguments = ["step", "--size", "0.25", "--collective", collective, "--baselines", "none", marker]
    command = mpi.command(4, ["-m", "psframe.bench", *arguments])
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": launcher.ROOT}
    process = subprocess.Popen(command, text=True, start_new_session=True, **pipes)
    draw, until, stops = seeded("victims and pauses"), time.monotonic() + seconds + 120, 0
    while process.poll() is None and time.monotonic() < until:
        pids = ranks_of(marker)
        if len(pids) < 4:
            time.sleep(0.1)
            continue
        victims = draw.sample(pids, draw.randint(1, 3))
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in victims:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    continue  # it has done
            time.sleep(draw.random() * 0.3)
        stops += 1
    try:
        out, err = process.communicate(timeout=60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, err
    assert "0.25 MB, 4 ranks" in out
    assert stops, "nobody was stopped while it ran"
