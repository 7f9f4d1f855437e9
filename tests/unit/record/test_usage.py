"""What a rank uses is sampled on time, is what the kernel counts, and never stops a run."""

import json
import socket
import threading
import time
from types import SimpleNamespace

import psutil
import pytest

from psframe.record import metrics, usage
from psframe.record.usage import Usage, append, sampled_s
from tests.helpers.launcher import go_back, train

#: a model of a user's own: in every epoch it waits until its rank has been sampled, on a machine of any speed
WAITING = """\
import threading, time
from psframe.nn.activations import Flatten
from psframe.nn.dense import Dense
from psframe.record.usage import Usage

samples, plain = [], Usage.sample

def sample(self):
    plain(self)
    samples.append(self)

Usage.sample = sample

class Waits(Flatten):
    def forward(self, x, state):
        n = len(samples)
        while state.train and n == len(samples) and any(t.name == "usage" for t in threading.enumerate()):
            time.sleep(0.01)
        return super().forward(x, state)

def build(input_shape, n_classes):
    return [Waits(), Dense(n_classes)]
"""


@pytest.fixture
def waiting(config, tmp_path):
    """Return the start of a command, with a module that has to be on PYTHONPATH; an epoch has one step."""
    (tmp_path / "waiting.py").write_text(WAITING)
    return lambda n, epochs, *keys: (
        *(config, "model=waiting:build", f"dataset.samples={60 * n}", f"train.epochs={epochs}"),
        *("train.batch_size=60", "record.usage=true", "sync.mode=allreduce", *keys),
    )


def lines(runs):
    (run,) = runs.iterdir()
    return [json.loads(line) for line in (run / "usage.jsonl").read_text().splitlines()]


def named(name):
    return [thread for thread in threading.enumerate() if thread.name == name]


def test_samples_come_one_after_the_other_and_the_thread_ends():
    with Usage(period_s=0.02) as used:
        assert named("usage")
        while len(used.kept) < 10:
            time.sleep(0.02)
    assert not named("usage")
    taken = used.take(100.0)
    assert used.take() == []
    ats = [at - 100.0 - used.began for at, _ in taken]
    assert ats == sorted(ats)


def test_samples_come_on_the_tick_and_late_ones_do_not_put_off_the_next(monkeypatch):
    """By a clock that goes on where the thread waits, each time by so much more than it asks for."""
    now, late_s = [50.0], iter((0.0, 0.0, 0.75, 2.5, 0.0, 0.0))

    def wait(seconds):
        late = next(late_s, None)
        now[0] += seconds + (late or 0.0)
        return late is None

    monkeypatch.setattr(usage, "perf_counter", lambda: now[0])
    used = Usage(period_s=1.0)
    used.stopped = SimpleNamespace(wait=wait, set=list)
    with used:
        used.thread.join()
    assert [at for at, _ in used.take(100.0)] == [151.0, 152.0, 153.75, 156.5, 157.0, 158.0]


def test_sampling_goes_on_where_training_does():
    used = Usage(before_s=3.0, period_s=0.02)
    for _ in range(2):
        with used:
            zero = used.zero
            while not used.kept:
                time.sleep(0.02)
        assert used.zero == zero
        assert used.take()


def test_thread_ends_when_training_fails():
    with pytest.raises(ZeroDivisionError), Usage():
        raise ZeroDivisionError
    assert not named("usage")


def test_sample_is_what_the_kernel_counts():
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


def test_denied_proc_drops_the_values(monkeypatch):
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


def test_lines_are_in_order_of_time_also_of_a_continued_run(tmp_path):
    append(tmp_path, 1, [[(11.0, (1.0, 2, 3, 4.0, None))], [(10.5, (1.0, 2, 3, 4.0, 5.0))]], 10.0)
    append(tmp_path, 2, [[(12.0, (1.0, 2, 3, 4.0, None))], []], 10.0)
    read = metrics.read(tmp_path, "usage.jsonl")
    assert [(r["epoch"], r["rank"], r["t_s"]) for r in read] == [(1, 1, 0.5), (1, 0, 1.0), (2, 0, 2.0)]
    assert read[1] | {"epoch": 1} == dict(zip(read[0], (1, 0, 1.0, 1.0, 2, 3, 4.0, None), strict=True))
    assert sampled_s(tmp_path) == 2.0
    metrics.cut_back(tmp_path, 1)
    assert sampled_s(tmp_path) == 1.0
    assert sampled_s(tmp_path / "none") == 0.0


@pytest.mark.full
@pytest.mark.parametrize("n", [1, 3])
def test_ranks_are_all_sampled_also_of_a_continued_run(mpi, n, waiting, tmp_path):
    runs = tmp_path / "runs"
    ended = train(mpi, n, *waiting(n, 2), PYTHONPATH=str(tmp_path))
    assert ended.status == 0, ended
    found = lines(runs)
    assert {line["rank"] for line in found} == set(range(n))
    assert {line["epoch"] for line in found} == {1, 2}
    (run,) = runs.iterdir()
    # cut it back to its first epoch, as a crash in the second would have left it
    go_back(run, 1)
    ended = train(mpi, n, *waiting(n, 3, f"checkpoint.resume={run}"), PYTHONPATH=str(tmp_path))
    assert ended.status == 0, ended
    again = lines(runs)
    kept = [line for line in found if line["epoch"] == 1]
    assert again[: len(kept)] == kept
    assert {line["epoch"] for line in again[len(kept) :]} == {2, 3}
    assert all(line["cpu_percent"] >= 0 and line["rss_bytes"] > 1 << 20 and line["threads"] > 1 for line in again)
    for rank in range(n):
        times = [line["t_s"] for line in again if line["rank"] == rank]
        assert times == sorted(set(times)), "a continued run did not go on where it was cut back to"


def test_run_whose_proc_is_denied_trains(mpich, waiting, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import psutil\npsutil.PROCFS_PATH = '/nonexistent'\n")
    ended = train(mpich, 2, *waiting(2, 1), PYTHONPATH=str(tmp_path))
    assert (ended.status, ended.err) == (0, "")
    found = lines(tmp_path / "runs")
    assert {line["rank"] for line in found} == {0, 1}
    assert all(line[key] is None for line in found for key in usage.KEYS)


def test_samples_are_not_taken_unasked(mpich, config, tmp_path):
    assert train(mpich, 2, config).status == 0
    (run,) = (tmp_path / "runs").iterdir()
    assert not (run / "usage.jsonl").exists()


@pytest.mark.full
@pytest.mark.parametrize("key", ["usage", "tensorboard"])
def test_missing_package_is_told_before_anything_is_made(mpi, key, config, tmp_path):
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


@pytest.mark.parametrize(("devices", "sent"), [(("eth0", "eth1"), 30), ((), 60)], ids=["bond", "container"])
def test_bytes_of_a_bond_are_counted_once(tmp_path, monkeypatch, devices, sent):
    for name in ("eth0", "eth1", "bond0"):
        (tmp_path / name / "device").mkdir(parents=True) if name in devices else (tmp_path / name).mkdir()
    moved = {"lo": 900, "eth0": 10, "eth1": 20, "bond0": 30}
    counters = {name: SimpleNamespace(bytes_sent=n, bytes_recv=2 * n) for name, n in moved.items()}
    monkeypatch.setattr(usage, "NETWORKS", str(tmp_path))
    monkeypatch.setattr(psutil, "net_io_counters", lambda pernic: counters)
    assert Usage()._moved() == (sent, 2 * sent)
