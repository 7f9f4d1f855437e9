"""Training over hosts that share nothing but a network, which is slow, or goes away."""

import json
import time

import pytest

from tests import hosts, launcher, live
from tests.test_loss import CONFIG, records_of


@pytest.fixture
def two():
    if hosts.missing():
        pytest.skip(hosts.missing())
    with hosts.Hosts(2, "1gbit") as made:
        yield made


def begin(mpi, two, each, tmp_path, *overrides, epochs):
    path = tmp_path / "hosts.yaml"
    path.write_text(CONFIG.format(epochs=epochs, runs=tmp_path / "runs").replace("continue", "stop"))
    words = ["-m", "psframe.train", str(path), "--quiet", "fault.late_s=0", *overrides]
    process = live.launch(two.on_first(two.mpi(mpi, each).command(sum(each), words)), **two.environment)
    live.trains(process, str(path))
    return process, str(path)


@pytest.mark.parametrize("each", [(2, 2), (1, 3), (3, 1)])
def test_two_hosts_end_in_the_bits_of_one(mpi, two, tmp_path, each):
    keys = ("sync.mode=sync_ps", "sync.server=dedicated")
    process, path = begin(mpi, two, each, tmp_path, *keys, epochs=2)
    err = live.ends(process, path, 60)
    assert process.returncode == 0, err
    over_two = records_of(tmp_path)
    assert over_two[0]["n_nodes"] == 2
    assert over_two[0]["collective"] == "hierarchical"
    assert launcher.train(mpi, 4, path, *keys, f"record.dir={tmp_path / 'one'}").status == 0
    (run,) = (tmp_path / "one").iterdir()
    over_one = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [record["params_sha256"] for record in over_two] == [record["params_sha256"] for record in over_one]


def test_a_link_that_is_cut_for_two_seconds_is_waited_for(mpi, two, tmp_path):
    process, path = begin(mpi, two, (2, 2), tmp_path, "sync.mode=allreduce", epochs=40)
    two.link(1, "down")
    time.sleep(2)
    n_before = len(records_of(tmp_path))
    assert n_before < 40
    two.link(1, "up")
    err = live.ends(process, path, 90)
    assert process.returncode == 0, err
    assert [record["epoch"] for record in records_of(tmp_path)] == list(range(1, 41))


def test_a_host_that_is_cut_off_is_named_after_the_deadline(mpi, two, tmp_path):
    process, path = begin(mpi, two, (2, 2), tmp_path, "sync={mode: allreduce, deadline_s: 3}", epochs=1000)
    two.link(1, "down")
    cut = time.monotonic()
    told = next(line for line in process.stderr if line.startswith("psframe:"))
    assert time.monotonic() - cut < 3 + 10  # and a machine that is busy
    assert f"node 1 ({two.names[1]}) did not come to an exchange for 3 s" in told
    assert f"cannot be reached from {two.names[0]}" in told
    two.link(1, "up")
    live.ends(process, path, 60)
    assert process.returncode != 0
