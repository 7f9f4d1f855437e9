"""The threads of a rank: when they start, what they raise, and that a fork does not take them along."""

import json
import os
import threading
import time

import pytest

from psframe.cluster.affinity import allowed_threads
from psframe.nn import subnormal
from psframe.nn.threads import Threads
from tests.helpers import launcher


def test_parts_run_once_and_no_thread_starts_before():
    before = threading.active_count()
    threads = Threads(4)
    assert threading.active_count() == before
    done = []
    for _ in range(50):
        threads.run(lambda part, n, word: done.append((part, n, word)), "x")
    assert sorted(done) == sorted([(part, 4, "x") for part in range(4)] * 50)
    assert threading.active_count() == before + 3


def test_phases_wait_for_each_other():
    threads, seen = Threads(3), []
    threads.run_phases(2, lambda part, n, phase: seen.append(phase))
    assert seen == [0] * 3 + [1] * 3
    Threads(1).run_phases(2, lambda *args: seen.append(args))
    assert seen[-1] == (0, 1, -1), "one thread does all phases in one call"


@pytest.mark.parametrize("failing", [0, 2])
def test_error_in_a_part_is_raised_and_the_threads_live_on(failing):
    threads, done = Threads(3), []

    def kernel(part, n):
        if part == failing:
            raise ValueError(f"part {part}")
        done.append(part)

    with pytest.raises(ValueError, match=f"part {failing}"):
        threads.run(kernel)
    threads.run(lambda part, n: done.append(part))
    assert len(done) == 2 + 3


@pytest.mark.skipif(not subnormal.AVAILABLE, reason="a thread of this CPU has no mode that takes subnormals for zeros")
@pytest.mark.parametrize("n", [1, 3])
def test_parts_compute_in_the_arithmetic_of_the_caller_whichever_was_before(n):
    threads, least = Threads(n), 2.0**-1074  # the least number above zero, which is subnormal

    def found():
        modes, halves = [None] * n, [None] * n

        def kernel(part, n, number):
            modes[part], halves[part] = subnormal.mode(), number * 1.0

        threads.run(kernel, least)
        return modes, halves

    ours, flushing = subnormal.mode(), None
    for _ in range(2):
        assert found() == ([ours] * n, [least] * n)
        with subnormal.flushed():
            flushing = subnormal.mode()
            assert found() == ([flushing] * n, [0.0] * n)
        assert subnormal.mode() == ours
    assert flushing != ours


def test_forked_process_starts_its_own():
    threads = Threads(3)
    threads.run(lambda part, n: None)
    child = os.fork()
    if child == 0:
        done = []
        threads.run(lambda part, n: done.append(part))
        os._exit(0 if sorted(done) == [0, 1, 2] else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize(("given", "n"), [("3", 3), ("0", 1), ("4,2", 1), (None, 1)])
def test_threads_that_the_user_allows(given, n, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    assert allowed_threads() == n


def test_run_ends_in_the_same_bits(tmp_path):
    where = launcher.installed("mpich")
    if where is None:
        pytest.skip("no mpich: bash launch/test.sh installs it")
    config = tmp_path / "config.yaml"
    config.write_text(
        "model: tests.helpers.tiny:build\ndataset: {name: synthetic, shape: [1, 6, 6], classes: 3, samples: 60}\n"
        "train: {epochs: 1, batch_size: 8}\n"
    )
    found, took_s = {}, {}
    for threads in ("1", "2", "auto"):
        command = ["-m", "psframe.train", str(config), f"record.dir={tmp_path / threads}", f"train.threads={threads}"]
        began = time.monotonic()
        ended = launcher.run(where, 1, [*command, "--quiet"], OMP_NUM_THREADS="3")
        took_s[threads] = time.monotonic() - began
        assert ended.status == 0, ended
        (metrics,) = (tmp_path / threads).glob("*/metrics.jsonl")
        found[threads] = json.loads(metrics.read_text())
    assert [record["threads"] for record in found.values()] == [1, 2, 1], "a step of so little work has one thread"
    assert len({record["params_sha256"] for record in found.values()}) == 1
    # to start is a part of the command
    assert all(0 < record["startup_s"] < took_s[threads] for threads, record in found.items())
