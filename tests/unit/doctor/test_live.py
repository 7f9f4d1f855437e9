"""Views of a running job: what a look says of ranks whose rings a test has written, and who is answered."""

import json
import os
from threading import Thread
from types import SimpleNamespace
from urllib.error import HTTPError
from urllib.request import urlopen

import numpy as np
import pytest

from psframe.compiled import flight
from psframe.doctor.live import snapshot, top, watch
from psframe.doctor.live.snapshot import Live
from psframe.errors import UserError
from psframe.record import metrics
from psframe.record.flight import EXCHANGE, FORWARD, GATE, PID, RANK, STATE, STEP, TRAINS, read


class Node:
    """Two ranks of one node, of which this process plays both."""

    def __init__(self, run):
        self.pid, self.run, self.memory = os.getpid(), run, np.zeros(2 * flight.N_BYTES, np.uint8)
        self.rings = [flight.Ring(), flight.Ring()]
        for number, ring in enumerate(self.rings):
            ring.move(self.memory[number * flight.N_BYTES : (number + 1) * flight.N_BYTES])
            for word, value in ((PID, os.getpid()), (RANK, number), (STATE, TRAINS)):
                ring.put(word, value)

    def read(self, n_events=0):
        halves = (self.memory[: flight.N_BYTES], self.memory[flight.N_BYTES :])
        return [read(half.data, n_events) for half in halves]


@pytest.fixture
def node(tmp_path, monkeypatch):
    run = tmp_path / "run"
    run.mkdir()
    made = Node(run)
    monkeypatch.setattr(snapshot, "here", lambda asked: [made])
    return made


RECORD = {
    "batch_size": 8,
    "global_batch": 16,
    "n_ranks": 4,
    "model": "lenet",
    "dataset": "<b>mnist</b>",
    "sync_mode": "allreduce",
    "collective": "shared",
    "pages": {"parameters": {"0": 2, "untouched": 9}, "gradients": {"1": 3}},
    "skipped": [{"step": 3}],
    "late": {"1": 4.5},
}


def take_steps(ring, first, n):
    for step in range(first, first + n):
        ring.step(1, step)
        ring.enter(STEP, step)
        ring.enter(EXCHANGE, step)
        ring.leave(0)


def test_look_counts_steps_of_each_rank_since_the_last_one(node, monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(snapshot, "time", SimpleNamespace(monotonic=lambda: clock.now))
    metrics.append(node.run, "metrics.jsonl", [{"epoch": 1, "loss": 2.0, "accuracy": 0.5, **RECORD}])
    live = Live(node.run)
    take_steps(node.rings[0], 1, 10)
    clock.now += 2.0
    now = live.look()
    first, second = now.rows
    assert (first.step, second.step) == (10, 0)
    assert first.samples_per_s == 40
    assert second.samples_per_s == 0
    assert second.exchanging is None
    assert 0 < first.exchanging <= 1
    assert now.samples_per_s == 80


def test_rates_of_the_first_epoch_are_of_the_config_s_batch(node, monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(snapshot, "time", SimpleNamespace(monotonic=lambda: clock.now))
    (node.run / "config.yaml").write_text("train: {batch_size: 8}\nparallel: {pipeline: 1, model: 1}\n")
    live = Live(node.run)
    for ring in node.rings:
        ring.note(FORWARD, 0, 0)
        take_steps(ring, 1, 10)
    clock.now += 2.0
    now = live.look()
    assert [row.samples_per_s for row in now.rows] == [40, 40]
    assert now.samples_per_s == 80


@pytest.mark.parametrize(
    "config",
    ["train: {batch_size: 8, reproducible: any_workers}", "train: {batch_size: 8}\nparallel: {pipeline: 2}", "[]"],
)
def test_rates_that_the_config_s_batch_does_not_tell_wait_for_a_record(node, config):
    (node.run / "config.yaml").write_text(config)
    assert Live(node.run).batch == 0


def test_rank_of_another_namespace_is_not_looked_up_by_its_number(node, monkeypatch):
    monkeypatch.setattr(snapshot.flight, "space", lambda: 1)
    assert [row.state for row in Live(node.run).look().rows] == ["?", "?"]


def test_look_has_memory_by_node_and_faults_of_all_epochs(node):
    records = [{"epoch": epoch, "loss": 1.0 / epoch, "accuracy": 0.5, **RECORD} for epoch in (1, 2)]
    metrics.append(node.run, "metrics.jsonl", records)
    now = Live(node.run).look()
    assert now.placed == {"0": 2 * 4096, "1": 3 * 4096}
    assert now.faults == {"skipped": 2, "seconds late": 9.0}
    text = top.text(now)
    assert "2 of 4 ranks on this host" in text
    assert "allreduce over shared" in text
    assert "loss     0.5000" in text


def test_look_names_what_a_rank_does(node):
    node.rings[1].enter(STEP, 4)
    node.rings[1].enter(GATE)
    first, second = Live(node.run).look().rows
    assert first.doing == "between phases"
    assert second.doing == "a wait at a gate"


def test_records_that_are_damaged_are_shown_as_far_as_they_go(node):
    (node.run / "metrics.jsonl").write_text('{"epoch": 1, "loss": "x", "pages": 3, "late": [], "skipped": 1}\nnonsense')
    now = Live(node.run).look()
    assert now.placed == {}
    assert top.text(now)


def test_job_that_is_not_here_is_a_mistake(tmp_path):
    with pytest.raises(UserError, match="a job of yours must train on this host"):
        Live(tmp_path)
    with pytest.raises(UserError, match="a run must be a folder"):
        Live(tmp_path / "none")


def test_curve_goes_from_low_to_high():
    assert top.curve([0.0, 1.0]) == "▁█"
    assert top.curve([3.0, 3.0]) == "▅▅"
    assert len(top.curve(range(500))) == top.WIDTH


@pytest.fixture
def served(node, request):
    metrics.append(node.run, "metrics.jsonl", [{"epoch": 1, "loss": 2.0, "accuracy": 0.5, **RECORD}])
    server = watch.made(Live(node.run), "127.0.0.1", 0)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def get(server, path, token=None):
    query = f"?token={server.token}" if token is None else token
    url = f"http://127.0.0.1:{server.server_address[1]}{path}{query}"
    try:
        with urlopen(url, timeout=60) as answer:
            return SimpleNamespace(status=answer.status, headers=answer.headers, body=answer.read().decode())
    except HTTPError as error:
        return SimpleNamespace(status=error.code, headers=error.headers, body=error.read().decode())


def test_page_has_data_and_runs_no_script_but_its_own(served):
    assert "page.js" in get(served, "/").body
    assert "default-src 'none'" in get(served, "/").headers["Content-Security-Policy"]
    data = json.loads(get(served, "/data").body)
    assert [row["rank"] for row in data["rows"]] == [0, 1]
    assert data["epochs"] == [{"epoch": 1, "loss": 2.0, "accuracy": 0.5, "epoch_s": None, "samples_per_s": None}]
    assert get(served, "/../../etc/passwd").status == 404
    assert "innerHTML" not in get(served, "/page.js").body


def test_page_wants_its_token(served):
    served.token = "a-secret"
    for path in ("/", "/data", "/?token=other", "/data?token="):
        assert get(served, path, token="").status == 403
    assert get(served, "/data?token=a-secret", token="").status == 200
    assert get(served, "/page.js", token="").status == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::1"])
def test_server_draws_a_token_for_any_address(node, host):
    server = watch.made(Live(node.run), host, 0)
    try:
        assert len(server.token) >= 16
        assert server.token in server.address
    finally:
        server.server_close()


def test_port_that_is_taken_is_a_mistake(served, node):
    with pytest.raises(UserError, match="a free port"):
        watch.made(Live(node.run), "127.0.0.1", served.server_address[1])


@pytest.mark.parametrize(
    ("command", "words", "rule"),
    [(top, ["--every", "0"], "--every must be"), (watch, ["--port", "70000"], "--port must be")],
)
def test_mistakes_in_the_commands_are_told(command, words, rule):
    with pytest.raises(UserError, match=rule):
        command.main(words)
