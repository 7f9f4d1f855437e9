"""Run directories: made, locked, continued, and checkpoints that are whole or told."""

import json
import multiprocessing
import os
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psframe.errors import UserError
from psframe.record import checkpoint, metrics, view
from psframe.record.run_dir import open_run

LAYOUT = "0.Dense.weight [3, 4] [1, 0] at 0"


def resolved(base, **changes):
    config = {
        "name": "a-run",
        "model": {"name": "lenet"},
        "train": {"epochs": 3, "seed": 0},
        "checkpoint": {"resume": "none", "keep": 2},
        "record": {"dir": str(base)},
        "versions": {"numpy": "2"},
    }
    for key, value in changes.items():
        section, _, name = key.partition("__")
        config[section] = {**config[section], name: value} if name else value
    return config


def saved(epoch=1, layout=LAYOUT):
    numbers = np.random.default_rng(epoch).standard_normal(16).astype(np.float32)
    return checkpoint.Saved(numbers, numbers[None] * 2, epoch, 10 * epoch, layout)


def keep(path, epoch, **kwargs):
    written = checkpoint.write(path / "checkpoints", saved(epoch, **kwargs))
    metrics.append(path, "metrics.jsonl", [{"epoch": epoch}])
    checkpoint.advance(written, 2)
    return written


def close(run):
    run.lock.close()
    return run


def test_runs_of_one_second_have_directories_of_their_own(tmp_path):
    paths = {open_run(resolved(tmp_path), LAYOUT).path for _ in range(3)}
    assert len(paths) == 3
    assert all(path.name.startswith("a-run-2") for path in paths)


def test_a_checkpoint_is_read_as_it_was_written(tmp_path):
    run = close(open_run(resolved(tmp_path), LAYOUT))
    keep(run.path, 2)
    again = checkpoint.latest(run.path / "checkpoints", LAYOUT)
    for name in ("params", "state"):
        np.testing.assert_array_equal(getattr(again, name), getattr(saved(2), name))
    assert (again.epoch, again.step) == (2, 20)


def test_only_the_newest_are_kept(tmp_path):
    run = close(open_run(resolved(tmp_path), LAYOUT))
    for epoch in (1, 2, 3, 4):
        keep(run.path, epoch)
    found = sorted(os.listdir(run.path / "checkpoints"))
    assert found == ["epoch-00003.h5", "epoch-00004.h5", "latest"]


def test_a_file_that_latest_does_not_name_is_no_checkpoint_yet(tmp_path):
    run = close(open_run(resolved(tmp_path), LAYOUT))
    keep(run.path, 1)
    checkpoint.write(run.path / "checkpoints", saved(2))
    assert checkpoint.latest(run.path / "checkpoints", LAYOUT).epoch == 1


def test_auto_continues_the_newest_unfinished_run_of_the_name(tmp_path):
    def auto(**changes):
        return close(open_run(resolved(tmp_path, checkpoint__resume="auto", **changes), LAYOUT))

    first = auto()
    assert first.new
    keep(first.path, 1)
    other = close(open_run(resolved(tmp_path, name="other"), LAYOUT))
    keep(other.path, 1)
    again = auto()
    assert (again.path, again.epoch, again.step, again.new) == (first.path, 1, 10, False)
    for epoch in (2, 3):
        keep(first.path, epoch)
    assert auto().path != first.path, "a finished run was continued"
    assert auto(train__epochs=4).epoch in (0, 3)


def test_a_path_continues_that_run(tmp_path):
    run = close(open_run(resolved(tmp_path), LAYOUT))
    keep(run.path, 1)
    changed = resolved("elsewhere", checkpoint__resume=str(run.path), train__epochs=9, versions={})
    again = close(open_run(changed, LAYOUT))
    assert (again.path, again.epoch) == (run.path, 1)
    assert "numpy" in (run.path / "config.yaml").read_text(), "the versions of the first part are lost"


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"train__seed": 1}, "train.seed"),
        ({"model__name": "cifar_quick"}, "model.name"),
        ({"model__more": 1}, "model.more"),
        ({"checkpoint__keep": 9}, "checkpoint.keep"),
        ({"name": "b-run"}, "name"),
    ],
)
def test_a_continued_run_names_the_keys_that_differ(tmp_path, changes, word):
    run = close(open_run(resolved(tmp_path), LAYOUT))
    keep(run.path, 1)
    config = resolved(tmp_path, **changes)
    config["checkpoint"]["resume"] = str(run.path)
    with pytest.raises(UserError, match=f"other values of {word}"):
        open_run(config, LAYOUT)


def test_a_run_whose_checkpoints_are_gone_is_not_overwritten(tmp_path):
    run = close(open_run(resolved(tmp_path), LAYOUT))
    metrics.append(run.path, "metrics.jsonl", [{"epoch": 1}])
    with pytest.raises(UserError, match="must have a checkpoint, got none"):
        open_run(resolved(tmp_path, checkpoint__resume=str(run.path)), LAYOUT)
    assert close(open_run(resolved(tmp_path, checkpoint__resume="auto"), LAYOUT)).path != run.path
    assert metrics.last_epoch(run.path) == 1


def test_a_run_that_was_stopped_in_its_first_epoch_begins_again_in_its_directory(tmp_path):
    run = close(open_run(resolved(tmp_path), LAYOUT))
    again = close(open_run(resolved(tmp_path, checkpoint__resume="auto"), LAYOUT))
    assert (again.path, again.epoch) == (run.path, 0)


def test_a_finished_run_is_not_continued_by_path(tmp_path):
    run = close(open_run(resolved(tmp_path), LAYOUT))
    keep(run.path, 3)
    with pytest.raises(UserError, match=r"3 done of 3; raise train\.epochs"):
        open_run(resolved(tmp_path, checkpoint__resume=str(run.path)), LAYOUT)


def test_a_checkpoint_of_another_model_is_told(tmp_path):
    run = close(open_run(resolved(tmp_path), LAYOUT))
    keep(run.path, 1, layout="another")
    with pytest.raises(UserError, match=r"must be of the model that is trained.*another"):
        open_run(resolved(tmp_path, checkpoint__resume=str(run.path)), LAYOUT)


def _second_run(config, answers):
    try:
        open_run(config, LAYOUT)
        answers.put("opened")
    except UserError as error:
        answers.put(str(error))


def test_a_second_live_run_in_a_directory_is_refused(tmp_path):
    run = open_run(resolved(tmp_path), LAYOUT)
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=_second_run, args=(resolved(tmp_path, checkpoint__resume=str(run.path)), answers))
    process.start()
    answer = answers.get(timeout=60)
    process.join(60)
    assert f"process {os.uname().nodename}:{os.getpid()} runs" in answer


@pytest.mark.parametrize("where", ["/dev/null/runs", "{file}", "/proc/psframe-runs"])
def test_a_directory_that_cannot_be_written(tmp_path, where):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"record\.dir must be a directory that can be written"):
        open_run(resolved(where.format(file=tmp_path / "file")), LAYOUT)


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_a_damaged_checkpoint_is_told(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("damage")
    (folder / "checkpoints").mkdir()
    path = keep(folder, 1)
    whole = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        del whole[data.draw(st.integers(0, len(whole) - 1)) :]
    else:
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(whole)
    try:
        found = checkpoint.latest(folder / "checkpoints", LAYOUT)
    except UserError as error:
        assert str(path) in str(error)
    else:
        np.testing.assert_array_equal(found.params, saved(1).params)
        np.testing.assert_array_equal(found.state, saved(1).state)
        assert (found.epoch, found.step, found.layout) == (1, 10, LAYOUT)


def test_a_checkpoint_that_is_missing_or_foreign_is_told(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    path = keep(tmp_path, 1)
    path.unlink()
    with pytest.raises(UserError, match="must be whole"):
        checkpoint.latest(path.parent, LAYOUT)
    with h5py.File(path, "w") as file:
        file["something"] = 1
    with pytest.raises(UserError, match="none of psframe's"):
        checkpoint.latest(path.parent, LAYOUT)


def test_numbers_that_json_cannot_hold_become_null(tmp_path):
    metrics.append(tmp_path, "metrics.jsonl", [{"epoch": 1, "loss": float("nan"), "x": float("inf"), "y": 1.5}])
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"epoch": 1, "loss": None, "x": None, "y": 1.5}


def test_records_are_cut_back_and_half_lines_dropped(tmp_path):
    metrics.append(tmp_path, "metrics.jsonl", [{"epoch": e} for e in (1, 2, 3)])
    with open(tmp_path / "metrics.jsonl", "a") as out:
        out.write('{"epoch": 4, "lo')
    assert metrics.last_epoch(tmp_path) == 3
    metrics.cut_back(tmp_path, 2)
    assert [r["epoch"] for r in metrics.read(tmp_path)] == [1, 2]
    assert metrics.read(tmp_path, "steps.jsonl") == []
    assert metrics.last_epoch(Path("/nonexistent")) == 0


def test_the_table():
    record = {"epoch": 1, "epoch_s": 1.234, "loss": None, "accuracy": 0.5, "samples_per_s": 12345.6}
    heading, line, row = view.table([record]).splitlines()
    assert " ".join(heading.split()) == "epoch seconds compute exchange update wait samples/s loss accuracy"
    assert set(line) == {"-"}
    assert row.split() == ["1", "1.23", "-", "-", "-", "-", "12,346", "-", "50.00%"]
