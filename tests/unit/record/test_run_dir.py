"""Run directories: made, locked, continued; records."""

import json
import multiprocessing
import os
from pathlib import Path

import pytest

from psframe.errors import UserError
from psframe.memory.arena import Layout
from psframe.nn.base import Param
from psframe.record import metrics, run_lock, view
from psframe.record.run_dir import newest, open_run, taken_over
from tests.helpers.checkpoints import LAYOUT, close, keep, resolved


def test_runs_of_one_second_have_directories_of_their_own(tmp_path):
    paths = {open_run(resolved(tmp_path), LAYOUT).path for _ in range(3)}
    assert len(paths) == 3
    assert all(path.name.startswith("a-run-2") for path in paths)


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


def test_path_continues_that_run(tmp_path):
    run = close(open_run(resolved(tmp_path), LAYOUT))
    keep(run.path, 1)
    changed = resolved("elsewhere", checkpoint__resume=str(run.path), train__epochs=9, versions={})
    again = close(open_run(changed, LAYOUT))
    assert (again.path, again.epoch) == (run.path, 1)
    assert "numpy" in (run.path / "config.yaml").read_text(), "the versions of the first part are lost"
    assert "resume: none" in (run.path / "config.yaml").read_text(), "it cannot be run again as it is"


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"train__seed": 1}, "train.seed"),
        ({"model__name": "cifar_quick"}, "model.name"),
        ({"model__more": 1}, "model.more"),
        ({"name": "b-run"}, "name"),
    ],
)
def test_continued_run_names_the_keys_that_differ(tmp_path, changes, word):
    run = close(open_run(resolved(tmp_path), LAYOUT))
    keep(run.path, 1)
    config = resolved(tmp_path, **changes)
    config["checkpoint"]["resume"] = str(run.path)
    with pytest.raises(UserError, match=f"other values of {word}"):
        open_run(config, LAYOUT)


def test_continued_run_may_write_other_checkpoints(tmp_path):
    run = close(open_run(resolved(tmp_path), LAYOUT))
    keep(run.path, 1)
    config = resolved(tmp_path, checkpoint__keep=9, checkpoint__every_seconds=60.0)
    config["checkpoint"]["resume"] = str(run.path)
    assert close(open_run(config, LAYOUT)).epoch == 1


def test_run_that_was_begun_before_there_was_a_key_goes_on_with_its_default(tmp_path):
    run = close(open_run(resolved(tmp_path), LAYOUT))
    keep(run.path, 1)
    for same, other, key in (
        ({"train__label_smoothing": 0.0}, {"train__label_smoothing": 0.1}, "train.label_smoothing"),
        ({"augment": {"crop": 0}}, {"augment": {"crop": 4}}, "augment.crop"),
    ):
        with pytest.raises(UserError, match=f"other values of {key} than"):
            open_run(resolved(tmp_path, checkpoint__resume=str(run.path), **other), LAYOUT)
        assert close(open_run(resolved(tmp_path, checkpoint__resume=str(run.path), **same), LAYOUT)).epoch == 1


def test_run_whose_checkpoints_are_gone_is_not_overwritten(tmp_path):
    run = close(open_run(resolved(tmp_path), LAYOUT))
    metrics.append(run.path, "metrics.jsonl", [{"epoch": 1}])
    with pytest.raises(UserError, match="must have a checkpoint, got none"):
        open_run(resolved(tmp_path, checkpoint__resume=str(run.path)), LAYOUT)
    assert close(open_run(resolved(tmp_path, checkpoint__resume="auto"), LAYOUT)).path != run.path
    assert metrics.last_epoch(run.path) == 1


def test_run_stopped_in_its_first_epoch_begins_again_in_place(tmp_path):
    run = close(open_run(resolved(tmp_path), LAYOUT))
    again = close(open_run(resolved(tmp_path, checkpoint__resume="auto"), LAYOUT))
    assert (again.path, again.epoch) == (run.path, 0)


def test_run_whose_records_are_ahead_is_unfinished(tmp_path):
    run = close(open_run(resolved(tmp_path), LAYOUT))
    keep(run.path, 2)
    for file in metrics.FILES:
        metrics.append(run.path, file, [{"epoch": 2}, {"epoch": 3}])
    left = [run.path / "checkpoints" / "epoch-00003-step-0000000030.h5.part", run.path / "checkpoints" / "latest.part"]
    for path in left:
        path.write_text("half")
    again = close(open_run(resolved(tmp_path, checkpoint__resume="auto"), LAYOUT))
    assert (again.path, again.epoch) == (run.path, 2)
    assert not [path for path in left if path.exists()]
    for file in metrics.FILES:
        assert {record["epoch"] for record in metrics.read(run.path, file)} == {2}


def test_run_goes_on_from_the_one_before_a_damaged_checkpoint(tmp_path):
    run = close(open_run(resolved(tmp_path), LAYOUT))
    keep(run.path, 1)
    bad = keep(run.path, 2)
    bad.write_bytes(bad.read_bytes()[:-1])
    again = close(open_run(resolved(tmp_path, checkpoint__resume="auto"), LAYOUT))
    assert (again.path, again.epoch) == (run.path, 1)
    (notice,) = again.notices
    assert f"{str(bad)!r} (its checksum differs): the run goes on from epoch-00001-step-0000000010.h5" in notice
    assert [record["epoch"] for record in metrics.read(run.path)] == [1]


def test_finished_run_is_not_continued_by_path(tmp_path):
    run = close(open_run(resolved(tmp_path), LAYOUT))
    keep(run.path, 3)
    with pytest.raises(UserError, match=r"3 done of 3; raise train\.epochs"):
        open_run(resolved(tmp_path, checkpoint__resume=str(run.path)), LAYOUT)


def test_checkpoint_of_another_model_is_told(tmp_path):
    run = close(open_run(resolved(tmp_path), LAYOUT))
    keep(run.path, 1, layout=Layout({"another": Param((3, 4), (0, 1))}))
    with pytest.raises(UserError, match=r"must be of the model that is trained.*another"):
        open_run(resolved(tmp_path, checkpoint__resume=str(run.path)), LAYOUT)


def _second_run(config, answers):
    try:
        open_run(config, LAYOUT)
        answers.put("opened")
    except UserError as error:
        answers.put(str(error))


def _owner():
    return f"{os.uname().nodename}:{os.getpid()}"


@pytest.mark.parametrize("how", ["continued", "taken over"])
def test_lock_names_the_process_that_has_the_run_and_none_before_it(tmp_path, how):
    run = close(open_run(resolved(tmp_path), LAYOUT))
    keep(run.path, 1)
    lock = run.path / "lock"
    assert lock.read_text() == f"{_owner()}\n"
    for before in ("a-host-of-a-long-name.example.org:1234567\n", "another:1\nthird:2\n", ""):
        lock.write_text(before)
        if how == "continued":
            close(open_run(resolved(tmp_path, checkpoint__resume=str(run.path)), LAYOUT))
        else:
            close(taken_over(run.path, 1, 0))
        assert lock.read_text() == f"{_owner()}\n"


def test_supervisor_finds_the_newest_run_of_its_job_or_of_none(tmp_path, monkeypatch):
    made = {}
    for second, job in enumerate(("", "mine:1:1", "mine:1:1", "", "other:1:1")):
        monkeypatch.setenv(run_lock.JOB, job)
        path = close(open_run(resolved(tmp_path), LAYOUT)).path
        os.utime(path / "config.yaml", (1000 + second,) * 2)
        made[second] = path
    assert run_lock.job_of(made[1]) == "mine:1:1"
    assert newest(tmp_path, "a-run", job="mine:1:1") == made[2]
    assert newest(tmp_path, "a-run", 1003, "mine:1:1") == made[3], "a launcher may keep variables to itself"
    assert newest(tmp_path, "a-run", 1004, "mine:1:1") is None
    assert newest(tmp_path, "a-run") == made[4]


def test_second_live_run_in_a_directory_is_refused(tmp_path):
    first = close(open_run(resolved(tmp_path), LAYOUT))
    keep(first.path, 1)
    (first.path / "lock").write_text("gone:1\n")
    run = open_run(resolved(tmp_path, checkpoint__resume=str(first.path)), LAYOUT)
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=_second_run, args=(resolved(tmp_path, checkpoint__resume=str(run.path)), answers))
    process.start()
    answer = answers.get(timeout=60)
    process.join(60)
    assert f"in which process {_owner()} runs; wait for it" in answer
    assert (first.path / "lock").read_text() == f"{_owner()}\n", "who is refused has written"


@pytest.mark.parametrize("where", ["/dev/null/runs", "{file}", "/proc/psframe-runs"])
def test_directory_that_cannot_be_written(tmp_path, where):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"record\.dir must be a directory that can be written"):
        open_run(resolved(where.format(file=tmp_path / "file")), LAYOUT)


def test_numbers_that_json_cannot_hold_become_null(tmp_path):
    metrics.append(tmp_path, "metrics.jsonl", [{"epoch": 1, "loss": float("nan"), "x": float("inf"), "y": 1.5}])
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"epoch": 1, "loss": None, "x": None, "y": 1.5}


def test_records_are_on_the_disk_when_they_are_appended(tmp_path, monkeypatch):
    synced, fsync = [], os.fsync

    def noted(fd):
        fsync(fd)
        synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")).read_text())

    monkeypatch.setattr(os, "fsync", noted)
    for file in metrics.FILES:
        for written in (["1"], ["1", "2", "3"]):
            metrics.append(tmp_path, file, [{"epoch": int(n)} for n in written[-2:]])
            assert synced[-1:] == ["".join(f'{{"epoch": {n}}}\n' for n in written)], file
            synced.clear()


def test_records_are_cut_back_and_half_lines_dropped(tmp_path):
    metrics.append(tmp_path, "metrics.jsonl", [{"epoch": e} for e in (1, 2, 3)])
    with open(tmp_path / "metrics.jsonl", "a") as out:
        out.write('{"epoch": 4, "lo')
    assert metrics.last_epoch(tmp_path) == 3
    metrics.cut_back(tmp_path, 2)
    assert [r["epoch"] for r in metrics.read(tmp_path)] == [1, 2]
    assert metrics.read(tmp_path, "steps.jsonl") == []
    assert metrics.last_epoch(Path("/nonexistent")) == 0


def test_table_of_records():
    record = {"epoch": 1, "epoch_s": 1.234, "loss": None, "accuracy": 0.5, "samples_per_s": 12345.6}
    heading, line, row = view.table([record]).splitlines()
    assert " ".join(heading.split()) == "epoch seconds compute exchange update wait samples/s loss accuracy"
    assert set(line) == {"-"}
    assert row.split() == ["1", "1.23", "-", "-", "-", "-", "12,346", "-", "50.00%"]


def test_continued_run_knows_how_many_epochs_it_was_to_have(tmp_path):
    run = close(open_run(resolved(tmp_path), LAYOUT))
    keep(run.path, 1)
    assert run.planned is None
    longer = resolved(tmp_path, checkpoint__resume=str(run.path), train__epochs=9)
    assert close(open_run(longer, LAYOUT)).planned == 3
