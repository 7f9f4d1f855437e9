"""What a rank uses is sampled on time, is what the kernel counts, and never stops a run."""

import json
import socket
import threading
import time

import psutil
import pytest

from psframe.record import metrics, usage
from psframe.record.usage import Usage, append, sampled_s
from tests.launcher import go_back, train

LATE_S = 0.02

#: a model of a user's own: epochs of 8 steps take 1.6 seconds or more on any machine
SLEEPY = """\
import time
from psframe.nn.activations import Flatten
from psframe.nn.dense import Dense

class Sleeps(Flatten):
    def forward(self, x, state):
        time.sleep(0.2)
        return super().forward(x, state)

def build(input_shape, n_classes):
    return [Sleeps(), Dense(n_classes)]
"""


@pytest.fixture
def sleepy(config, tmp_path):
    """Return the start of a command, with a module that has to be on PYTHONPATH."""
    (tmp_path / "sleepy.py").write_text(SLEEPY)
    return lambda n, epochs, *keys: (
        *(config, "model=sleepy:build", f"dataset.samples={60 * n}", f"train.epochs={epochs}"),
        *("record.usage=true", "sync.mode=allreduce", *keys),
    )


def lines(runs):
    (run,) = runs.iterdir()
    return [json.loads(line) for line in (run / "usage.jsonl").read_text().splitlines()]


def named(name):
    return [thread for thread in threading.enumerate() if thread.name == name]


def test_samples_come_on_the_tick_and_the_thread_ends():
    with Usage(period_s=LATE_S) as used:
        assert named("usage")
        while len(used.kept) < 10:
            time.sleep(LATE_S)
    assert not named("usage")
    taken = used.take(100.0)
    assert used.take() == []
    ats = [at - 100.0 - used.began for at, _ in taken]
    assert ats == sorted(ats)
    # none comes before its tick, and each has one of its own: late ones do not put off the next
    ticks = [int(at / LATE_S + 0.01) for at in ats]
    assert min(ticks) >= 1
    assert len(set(ticks)) == len(ticks)


def test_the_thread_ends_when_training_fails():
    with pytest.raises(ZeroDivisionError), Usage():
        raise ZeroDivisionError
    assert not named("usage")


def test_a_sample_is_what_the_kernel_counts():
    used = Usage(period_s=1000)
    with used:
        until = time.process_time() + 0.3
        while time.process_time() < until:
            pass
        kept = bytearray(64 << 20)
        kept[::4096] = b"x" * len(kept[::4096])
        used.sample()
        (first,) = used.take()
        process = psutil.Process()
        now = dict(zip(usage.KEYS, first[1], strict=True))
        assert now["rss_bytes"] == pytest.approx(process.memory_info().rss, rel=0.2)
        assert now["rss_bytes"] > len(kept)
        assert now["threads"] == threading.active_count() or now["threads"] == process.num_threads()
        assert now["cpu_percent"] > 0
        del kept
        time.sleep(0.3)
        used.sample()
        (second,) = used.take()
    assert second[1][0] < now["cpu_percent"], "it slept, and used as much as when it ran"


def test_loopback_is_no_network():
    used = Usage(period_s=1000)
    before = psutil.net_io_counters(pernic=True)["lo"].bytes_sent
    counted = used._moved()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        peer, _ = server.accept()
        with peer:
            for _ in range(64):
                client.sendall(b"x" * 65536)
                taken = 0
                while taken < 65536:
                    taken += len(peer.recv(65536))
    assert psutil.net_io_counters(pernic=True)["lo"].bytes_sent - before > 4 << 20
    assert used._moved()[0] - counted[0] < 4 << 20


def test_a_denied_proc_drops_the_values(monkeypatch):
    monkeypatch.setattr(psutil, "PROCFS_PATH", "/nonexistent")
    used = Usage(period_s=1000)
    with used:
        used.sample()
        monkeypatch.undo()
        used.sample()
        used.sample()
    denied, counts, rates = [values for _, values in used.take()]
    assert denied == (None,) * 5
    assert counts[3:] == (None, None), "there was nothing to count from"
    assert None not in rates[3:]


def test_lines_stand_in_the_order_of_time_and_a_continued_run_goes_on(tmp_path):
    append(tmp_path, 1, [[(11.0, (1.0, 2, 3, 4.0, None))], [(10.5, (1.0, 2, 3, 4.0, 5.0))]], 10.0)
    append(tmp_path, 2, [[(12.0, (1.0, 2, 3, 4.0, None))], []], 10.0)
    read = metrics.read(tmp_path, "usage.jsonl")
    assert [(r["epoch"], r["rank"], r["t_s"]) for r in read] == [(1, 1, 0.5), (1, 0, 1.0), (2, 0, 2.0)]
    assert read[1] | {"epoch": 1} == dict(zip(read[0], (1, 0, 1.0, 1.0, 2, 3, 4.0, None), strict=True))
    assert sampled_s(tmp_path) == 2.0
    metrics.cut_back(tmp_path, 1)
    assert sampled_s(tmp_path) == 1.0
    assert sampled_s(tmp_path / "none") == 0.0


@pytest.mark.parametrize("n", [1, 3])
def test_every_rank_is_sampled_and_a_continued_run_goes_on(mpi, n, sleepy, tmp_path):
    runs = tmp_path / "runs"
    ended = train(mpi, n, *sleepy(n, 2), PYTHONPATH=str(tmp_path))
    assert ended.status == 0, ended
    found = lines(runs)
    assert {line["rank"] for line in found} == set(range(n))
    assert {line["epoch"] for line in found} == {1, 2}
    (run,) = runs.iterdir()
    # cut it back to its first epoch, as a crash in the second would have left it
    go_back(run, 1)
    ended = train(mpi, n, *sleepy(n, 3, f"checkpoint.resume={run}"), PYTHONPATH=str(tmp_path))
    assert ended.status == 0, ended
    again = lines(runs)
    kept = [line for line in found if line["epoch"] == 1]
    assert again[: len(kept)] == kept
    assert {line["epoch"] for line in again[len(kept) :]} == {2, 3}
    assert all(line["cpu_percent"] >= 0 and line["rss_bytes"] > 1 << 20 and line["threads"] > 1 for line in again)
    for rank in range(n):
        times = [line["t_s"] for line in again if line["rank"] == rank]
        assert times == sorted(set(times)), "a continued run did not go on where it was cut back to"


def test_a_run_whose_proc_is_denied_trains(mpich, sleepy, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import psutil\npsutil.PROCFS_PATH = '/nonexistent'\n")
    ended = train(mpich, 2, *sleepy(2, 1), PYTHONPATH=str(tmp_path))
    assert (ended.status, ended.err) == (0, "")
    found = lines(tmp_path / "runs")
    assert {line["rank"] for line in found} == {0, 1}
    assert all(line[key] is None for line in found for key in usage.KEYS)


def test_nothing_is_sampled_unasked(mpich, config, tmp_path):
    assert train(mpich, 2, config).status == 0
    (run,) = (tmp_path / "runs").iterdir()
    assert not (run / "usage.jsonl").exists()


@pytest.mark.parametrize("key", ["usage", "tensorboard"])
def test_a_package_that_is_missing_is_told_before_anything_is_made(mpi, key, config, tmp_path):
    package = {"usage": "psutil", "tensorboard": "tensorboardX"}[key]
    (tmp_path / "absent").mkdir()
    (tmp_path / "absent" / f"{package}.py").write_text("raise ImportError('it is absent')\n")
    ended = train(mpi, 3, config, f"record.{key}=true", PYTHONPATH=str(tmp_path / "absent"))
    assert ended.status == 2, ended
    assert ended.err.count(f"record.{key} must have the package {package}") == 1, ended.err
    assert f"(it is absent); pip install {package}" in ended.err
    assert "Traceback" not in ended.err
    assert not (tmp_path / "runs").exists()
    assert train(mpi, 3, config, PYTHONPATH=str(tmp_path / "absent")).status == 0, "it is not needed unasked"
