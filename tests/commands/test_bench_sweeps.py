"""The benchmarks over numbers of ranks that are whole runs: a forward pass, threads against processes."""

import json

import numpy as np
import pytest
import yaml

from psframe.bench import forward, sweep
from psframe.errors import UserError
from tests.helpers.runs import bench


@pytest.mark.full
def test_forward_pass_is_timed_at_every_number_of_ranks(mpi, tmp_path):
    path = tmp_path / "out.json"
    ended = bench(mpi, "forward", "--ranks", "1,3", "--batch", 6, "--repetitions", 2, "--json", path)
    assert ended.returncode == 0, ended
    report = json.loads(path.read_text())
    assert [row["n_ranks"] for row in report["rows"]] == [1, 3]
    one, three = report["rows"]
    assert one["speedup"] == one["efficiency"] == 1
    assert three["speedup"] == pytest.approx(one["seconds"]["median"] / three["seconds"]["median"])
    assert three["efficiency"] == pytest.approx(three["speedup"] / 3)
    assert one["mean_output"] == pytest.approx(three["mean_output"], rel=1e-5)
    assert "har_cnn, forward, 6 samples" in ended.stdout


def report(n_ranks, size):
    row = {"n_ranks": n_ranks, "seconds": {"median": 1.0 / n_ranks}, "mean_output": size}
    return {"batch": 8, "cores": 2, "rows": [row]}


def test_speedup_is_absent_where_one_rank_was_not_measured():
    rows = forward.joined([report(3, 2.0), report(2, 2.0)])["rows"]
    assert [(row["n_ranks"], "speedup" in row) for row in rows] == [(2, False), (3, False)]


def test_outputs_that_differ_between_numbers_of_ranks_fail():
    assert forward.joined([report(1, 2.0), report(2, 2.0)])["rows"][1]["efficiency"] == 1
    for wrong in (2.1, float("nan")):
        with pytest.raises(UserError, match="must come to the same outputs"):
            forward.joined([report(1, 2.0), report(2, wrong)])


@pytest.mark.full
def test_number_of_ranks_that_fails_is_named_and_others_shown(mpich, tmp_path):
    path = tmp_path / "out.json"
    ended = bench(mpich, "forward", "--ranks", "1,2,3", "--batch", 2, "--repetitions", 1, "--json", path)
    assert ended.returncode == 1
    assert ended.stderr.count("failed at 3 ranks: --batch must have a sample for each rank, got 2 for 3") == 1
    assert [row["n_ranks"] for row in json.loads(path.read_text())["rows"]] == [1, 2]


@pytest.mark.full  # AlexNet, thrice
def test_threads_and_processes_do_the_same_work(mpich, tmp_path):
    out = tmp_path / "out"
    keys = ["--model", "alexnet", "--counts", "1,2", "--samples", 4, "--batch", 4, "--epochs", 1]
    ended = bench(mpich, "threads", *keys, "--out", out, timeout_s=600)
    assert ended.returncode == 0, ended
    report = json.loads((out / "threads.json").read_text())
    found = report["models"]["alexnet"]
    assert [(row["kind"], row["n"]) for row in found["rows"]] == [("threads", 1), ("threads", 2), ("processes", 2)]
    one, threads, processes = found["rows"]
    assert one["speedup"] == 1
    assert threads["speedup"] == pytest.approx(one["epoch_s"]["median"] / threads["epoch_s"]["median"])
    ran = [yaml.safe_load((out / row["run"] / "config.yaml").read_text())["train"] for row in found["rows"]]
    assert [(train["threads"], train["batch_size"]) for train in ran] == [(1, 4), (2, 4), (1, 2)]
    records = [json.loads((out / row["run"] / "metrics.jsonl").read_text()) for row in found["rows"]]
    assert {record["global_batch"] for record in records} == {4}
    assert records[0]["params_sha256"] == records[1]["params_sha256"]
    assert records[2]["loss"] == pytest.approx(records[0]["loss"], rel=1e-4)
    assert processes["accuracy"] == records[2]["accuracy"]
    again = bench(mpich, "threads", *keys, "--out", out)
    assert (again.returncode, "--out must be a new folder" in again.stderr) == (2, True)


@pytest.mark.full
def test_threads_are_measured_on_pictures_of_ones_own(mpich, tmp_path):
    image = pytest.importorskip("PIL.Image", reason="Pillow, which decodes pictures, is not installed")
    for label in ("fire", "smoke", "none"):
        (tmp_path / "pictures" / label).mkdir(parents=True)
        for number in range(5):
            pixels = np.random.default_rng(number).integers(0, 256, (230, 240, 3), np.uint8)
            image.fromarray(pixels).save(tmp_path / "pictures" / label / f"{number}.png")
    keys = ["--model", "alexnet", "--counts", 1, "--batch", 4, "--epochs", 1, "--data", tmp_path / "pictures"]
    ended = bench(mpich, "threads", *keys, "--out", tmp_path / "out")
    assert ended.returncode == 0, ended
    (row,) = json.loads((tmp_path / "out" / "threads.json").read_text())["models"]["alexnet"]["rows"]
    record = json.loads((tmp_path / "out" / row["run"] / "metrics.jsonl").read_text())
    assert (record["dataset"], record["samples_used"]) == ("image_folder", 12)  # every fifth of a class is for the test


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["forward", "--batch", "0"], ["--batch must be 1 or more"]),
        (["forward", "--model", "resnet"], ["--model must be one of", "'resnet'"]),
        (["forward", "--ranks", "0"], ["--ranks", "'0'"]),
        (["forward", "--bach", "8"], ["unrecognized arguments: --bach"]),
        (["forward", "--json", "/no/such/file", "--ranks", "1", "--batch", "2", "--repetitions", "1"], ["--json"]),
        (["threads", "--model", "lenet"], ["--model must name some of alexnet, vgg16, got 'lenet'"]),
        (
            ["threads", "--counts", "3", "--batch", "16"],
            ["--batch must be shared evenly", "got 16 for 3"],
        ),
        (["threads", "--samples", "3"], ["--samples must be 16 or more", "'3'"]),
        (["threads", "--data", "nowhere"], ["--data must be a folder of pictures", "'nowhere'"]),
        (["threads", "--out", "/proc/1/no"], ["--out must be a folder that can be written"]),
    ],
)
def test_mistakes_are_told_in_one_sentence(mpich, arguments, words):
    ended = bench(mpich, *arguments)
    assert ended.returncode == 2, ended
    assert "Traceback" not in ended.stderr
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("psframe:")]
    assert all(word in line for word in words), line


def test_mpirun_option_comes_before_the_variable(mpich):
    ended = bench(mpich, "forward", "--ranks", "1", "--batch", "2", PSFRAME_MPIRUN="unused")
    assert ended.returncode == 0, ended


@pytest.mark.parametrize(("text", "numbers"), [("4,2,4", [4, 2]), ("3", [3]), ("1,1", [1])])
def test_numbers_of_ranks_are_those_that_are_given_once_each(text, numbers):
    assert sweep.counts(text) == numbers


@pytest.mark.parametrize(
    ("n_cores", "numbers"),
    [
        (1, [1]),
        (2, [1, 2]),
        (3, [1, 2, 3]),
        (6, [1, 2, 4, 6]),
        (8, [1, 2, 4, 8]),
        (9, [1, 2, 4, 8, 9]),
        (68, [1, 2, 4, 8, 16, 32, 64, 68]),
    ],
)
def test_numbers_of_ranks_are_powers_of_two_up_to_the_cores_by_default(monkeypatch, n_cores, numbers):
    monkeypatch.setattr(sweep.os, "sched_getaffinity", lambda pid: {*range(5, 5 + n_cores)})
    assert sweep.counts(None) == numbers
