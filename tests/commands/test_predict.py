"""``python -m psframe.predict`` as a user runs it."""

import json
import os
import re

import msgspec
import pytest

from psframe.predict import machine, measure
from psframe.predict.byte_counts import counted
from psframe.predict.job import ExchangePlan
from tests.helpers.forked import command
from tests.helpers.thinned import thinned

CONFIG = """\
name: small
model: lenet
dataset: {name: synthetic, samples: 512}
train: {batch_size: 16}
sync: {mode: allreduce}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("predict")
    (made / "small.yaml").write_text(CONFIG)
    return made


def predict(folder, *arguments, timeout_s=300, **env):
    return command("psframe.predict", *arguments, cwd=folder, timeout_s=timeout_s, env={**os.environ, **env})


@pytest.mark.full
def test_clusters_that_are_not_at_hand(folder):
    ended = predict(folder, "small.yaml", "--machine", "knl-7250-mcdram", "--ranks", "16,64,4096", "--json", "knl.json")
    assert ended.returncode == 0, ended.stderr
    assert "MODELLED" in ended.stdout
    assert "figures alone" in ended.stdout
    assert "nothing of it was ever measured" in ended.stdout
    assert "error on tables of others" in ended.stdout
    report = json.loads((folder / "knl.json").read_text())
    assert {row["n_ranks"] for row in report["rows"]} == {16, 64, 4096}
    assert all(row["epoch_s"] > 0 and not row["measured"] for row in report["rows"])
    labels = {row["label"] for row in report["rows"] if row["n_ranks"] == 4096}
    assert labels == {
        "allreduce over shared memory (the config)",
        "sync_ps over shared memory",
        "sync_ps over buffer",
        "allreduce over buffer",
        "sync_ps, a server a node over buffer",
    }
    page = command("psframe.report", "knl.json", "--out", "knl.html", cwd=folder)
    assert page.returncode == 0, page.stderr
    assert "Predicted (modelled, not measured)" in (folder / "knl.html").read_text()


@pytest.mark.parametrize("n", thinned([3, 5], (1,)))
def test_bytes_are_those_that_the_collectives_count(folder, pool, n):
    """Of every way, in real exchanges of a megabyte."""
    for mode in ("sync_ps", "allreduce"):
        for reproducible in ("none", "fixed_workers"):
            arguments = ["--collective", "shared,buffer,object", "--mode", mode, "--reproducible", reproducible]
            arguments += ["--size", "1", "--baselines", "none", "--seconds", "0.01", "--json", folder / "step.json"]
            ended = pool(n).bench("step", *arguments)
            assert ended.status == 0, ended.err
            (size,) = json.loads((folder / "step.json").read_text())["sizes"]
            for name, row in size["methods"].items():
                way = ExchangePlan(mode, "dedicated" if mode == "sync_ps" else None, 1, name, reproducible, n)
                moved, sent = counted(way, 1e6)
                slack = 0.001 * moved * (name == "object")  # pickles have headers
                assert row["bytes"] == pytest.approx(moved, abs=slack + 64), (mode, reproducible, name)
                assert row["sent"] == pytest.approx(sent, abs=slack + 64)


def test_best_ways_and_another_link_are_predicted(folder):
    keys = ("sync={mode: local_sgd, every: 4}", "--machine", "xeon-max-9480-flat", "--ranks", "112", "--best")
    ended = predict(folder, "small.yaml", *keys)
    assert ended.returncode == 0, ended.stderr
    rows = [line for line in ended.stdout.splitlines() if "figures alone" in line]
    assert len(rows) == 5
    ended = predict(
        folder, "small.yaml", "train.reproducible=any_workers", "train.global_batch=2048", "train.blocks=256",
        "--machine", "a64fx", "--ranks", "192", "--what-if", "link=1,100", "--json", "links.json"
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    slow, fast = json.loads((folder / "links.json").read_text())["rows"]
    assert (slow["label"], fast["label"]) == ("link=1", "link=100")
    assert slow["epoch_s"] > fast["epoch_s"]


@pytest.mark.full
def test_check_predicts_first_and_adds_what_came_out(folder):
    mine = msgspec.structs.replace(machine.read("a64fx"), title=measure.this(), memory="hbw")
    machine.write(str(folder / "here.yaml"), mine)
    ended = predict(folder, "small.yaml", "--machine", "here.yaml", "--ranks", "1,2", "--check")
    assert ended.returncode == 0, ended.stderr
    first, last = (ended.stderr.index(word) for word in ("predicted: ", "2 ranks"))
    assert first < last
    found = machine.read(str(folder / "here.yaml")).checks
    assert [check.ranks for check in found] == [1, 2]
    assert all(check.measured_s > 0 and check.predicted_s > 0 for check in found)
    assert "error on 2 measured epochs of this machine" in ended.stdout
    ended = predict(folder, "small.yaml", "--machine", "here.yaml", "--ranks", "2", "--check", "--json", "c.json")
    assert len(json.loads((folder / "c.json").read_text())["pairs"]) == 3
    assert "error on 2 measured epochs of this machine" in ended.stdout  # the last of the same stands
    ended = predict(folder, "small.yaml", "--machine", "here.yaml", "--ranks", "2")
    assert "compute measured" in ended.stdout
    hosts = ("--hosts", "2", "--what-if", "per_node=1")
    ended = predict(folder, "small.yaml", "--machine", "here.yaml", "--ranks", "2", *hosts)
    assert (ended.returncode, "or by --per-node or --what-if per_node" in ended.stderr) == (2, True), ended.stderr
    others = ("--per-node", "1", "--check")
    ended = predict(folder, "small.yaml", "--machine", "here.yaml", "--ranks", "2", *others)
    assert (ended.returncode, "--check trains on this machine alone" in ended.stderr) == (2, True), ended.stderr


WRONG = {
    "no config": ([], "must be given a config"),
    "no file": (["missing.yaml", "--machine", "a64fx"], "readable file"),
    "no machine": (["small.yaml"], "--machine must name a profile"),
    "another machine": (["small.yaml", "--machine", "cray"], "knl-7250-ddr"),
    "another link": (["small.yaml", "--machine", "a64fx", "--link", "40"], "valid: 1, 10, 100"),
    "ranks": (["small.yaml", "--machine", "a64fx", "--ranks", "two"], "--ranks must be whole numbers"),
    "ranks too many": (["small.yaml", "--machine", "a64fx", "--ranks", "2,1048577"], "and at most 1,048,576, got"),
    "per node": (["small.yaml", "--machine", "a64fx", "--per-node", "0"], "--per-node must be at least 1"),
    "key": (["small.yaml", "--machine", "a64fx", "--what-if", "colour=1"], "--what-if must be KEY=VALUE"),
    "value": (["small.yaml", "--machine", "a64fx", "--what-if", "mode=easgd"], "must be one of sync_ps, allreduce"),
    "mode": (["small.yaml", "--machine", "a64fx", "sync={mode: hybrid}"], "knows sync.mode sync_ps, allreduce, async_"),
    "no staleness": (["small.yaml", "--machine", "a64fx", "sync={mode: async_ps, staleness: 0}"], "with staleness 0"),
    "bfloat16": (["small.yaml", "--machine", "a64fx", "train.precision=bf16"], "in float32 alone"),
    "grid": (["small.yaml", "--machine", "a64fx", "parallel={pipeline: 2}", "--ranks", "3"], "must divide the number"),
    "config's key": (["small.yaml", "--machine", "a64fx", "train.colour=1"], "colour"),
    "check elsewhere": (["small.yaml", "--machine", "a64fx", "--check"], "profile of this machine"),
    "two things": (["small.yaml", "--machine", "a64fx", "--best", "--check"], "not allowed with"),
    "more than measured": (["small.yaml", "--measure", "x.yaml"], "--measure stands alone"),
    "servers": (["small.yaml", "--machine", "a64fx", "--what-if", "n_servers=2"], "counts under sync.mode sync_ps"),
    "hosts elsewhere": (["small.yaml", "--machine", "a64fx", "--hosts", "2"], "--hosts are of the machine at hand"),
    "no file for JSON": (["small.yaml", "--machine", "a64fx", "--json", "no/x.json"], "--json must name a file"),
    "nowhere": (["--measure", "no/folder/m.yaml"], "can be written"),
}


#: what ranks alone can tell, once they have started
LATE = ("servers", "grid")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.full] * (name in LATE)) for name in WRONG])
def test_mistakes_are_told_in_a_sentence(folder, name):
    arguments, told = WRONG[name]
    ended = predict(folder, *arguments)
    assert ended.returncode == 2, ended.stdout + ended.stderr
    assert told in ended.stderr
    assert "Traceback" not in ended.stderr
    told = [line for line in ended.stderr.splitlines() if line.startswith("psframe: ")]
    assert len([line for line in told if "warning" not in line]) == 1  # of a machine that is busy with other tests


def test_predict_is_refused_under_mpirun(folder):
    ended = predict(folder, "small.yaml", "--machine", "a64fx", PMI_RANK="0")
    assert ended.returncode == 2
    assert "starts mpirun itself" in ended.stderr
    another = predict(folder, "small.yaml", "--machine", "a64fx", PMI_RANK="3")
    assert (another.returncode, another.stdout, another.stderr) == (2, "", "")  # one message, not N


@pytest.mark.full
def test_machine_is_measured(folder):
    ended = predict(folder, "--measure", "mine.yaml", timeout_s=1200)
    assert ended.returncode == 0, ended.stderr
    found = machine.read(str(folder / "mine.yaml"))
    assert found.title == measure.this()
    assert {each.ranks for each in found.exchanges} >= {2, 4}
    assert len({each.method for each in found.exchanges}) == 10


def test_run_is_compared_with_what_is_expected_of_it(folder, pool):
    ended = pool(2).train(str(folder / "small.yaml"), "train.epochs=2", f"record.dir={folder / 'runs'}")
    assert ended.status == 0, ended.err
    (run,) = (folder / "runs").iterdir()
    found = command("psframe.doctor.why", str(run), "--machine", "knl-7250-mcdram", cwd=folder, timeout_s=300)
    assert found.returncode == 0, found.stderr
    assert re.search(r": an epoch takes [\d.e-]+ s, and the model of .*7250.* expects [\d.e-]+ s$", found.stdout, re.M)
    wrong = command("psframe.doctor.why", str(run), "--machine", "pdp-11", cwd=folder)
    assert wrong.returncode == 2
    assert "pdp-11" in wrong.stderr
