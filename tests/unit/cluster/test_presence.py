"""Keepers as others meet them: commands that look for a run, ranks with a recorder, and ranks that do not end."""

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from psframe.cluster.flight import presence
from psframe.cluster.flight.keeper import BYE, ENDS
from psframe.record import flight
from tests.helpers.keepers import wait


def trains(one):
    """Let a job train, and wait until its keeper holds the run's folder open."""
    one.trains()
    wait(lambda: presence.present(one.run))


def test_presence_finds_the_keeper_of_a_run(job):
    one = job(3).start(0, 1, 2)
    trains(one)
    for number, state in enumerate((flight.STARTS, flight.TRAINS, flight.ENDED)):
        one.rings[number].put(flight.PID, 1000 + number)
        one.rings[number].put(flight.STATE, state)
    one.rings[1].enter(flight.STEP, 40)
    (found,) = presence.present(one.run)
    assert found.pid == one.keeper.pid
    assert [read.header["pid"] for read in found.read()] == [1000, 1001, 1002]
    assert [[phase[:2] for phase in read.phases] for read in found.read()] == [[], [(flight.STEP, 40)], []]
    one.rings[0].note(flight.STORE, 7)
    assert [event[:3] for event in found.read(5)[0].events] == [(flight.STORE, 0, 7)], "it is not what is there now"


def test_presence_is_by_folder(job, tmp_path):
    one = job(1).start(0)
    trains(one)
    (tmp_path / "latest").symlink_to(one.run)
    (tmp_path / "other").mkdir()
    assert [each.pid for each in presence.present(tmp_path / "latest")] == [one.keeper.pid]
    assert presence.present(tmp_path / "other") == []
    assert presence.present(tmp_path) == [], "it is where the keeper was started"
    for name in ("none", "none/inner"):
        with pytest.raises(FileNotFoundError):
            presence.present(tmp_path / name)


def test_presence_finds_no_run_before_it_has_a_folder_nor_after_its_end(job):
    one = job(1).start(0)
    assert presence.present(one.run) == []
    trains(one)
    assert len(presence.present(one.run)) == 1
    one.tell(0, BYE)
    assert one.over() == []
    assert presence.present(one.run) == []


def test_presence_finds_rings_among_the_stacks_of_ranks(job):
    """A keeper has files for those in memory, too, of numbers that were free."""
    one = job(2, spare=40).start()
    for number in (0, 1):
        one.deaf(number)
        one.rings[number].put(flight.PID, 1000 + number)
        one.rings[number].put(flight.STATE, flight.TRAINS)
    trains(one)
    (found,) = presence.present(one.run)
    assert [read.header["pid"] for read in found.read()] == [1000, 1001]


def test_presence_takes_no_other_process_for_a_keeper(job):
    one = job(1)
    held = os.open(one.run, os.O_RDONLY)  # this process has rings and the folder open, as a keeper has
    assert presence.present(one.run) == []
    os.close(held)


def test_presence_is_of_processes_that_can_be_looked_at(job, tmp_path):
    one, fake = job(1), tmp_path / "proc"
    for name in ("self", "77", "78/fd", "79"):
        (fake / name).mkdir(parents=True)
    for name in ("78", "79"):
        (fake / name / "cmdline").write_bytes(presence.KEEPER.encode())
    assert presence.present(one.run, fake) == []


def lines(one, child, text):
    """Let a rank evaluate an expression; return the value."""
    child.stdin.write(f"{text}\n")
    child.stdin.flush()
    return eval(child.stdout.readline())


def test_recorder_s_rank_answers_a_signal_with_its_stacks(job):
    one = job(2).start(STACK_S=60)
    children = [one.rank(number) for number in (0, 1)]
    lines(one, children[0], f"recorder.tell(run={str(one.run)!r})")
    children[1].send_signal(signal.SIGUSR2)
    wait(one.found)
    (told,) = one.found()
    assert (told["reason"], told["rank"]) == ("asked", 11)
    assert [rank["answered"] for rank in told["ranks"]] == [True, True]
    assert ["waits_for_a_line" in rank["stacks"] for rank in told["ranks"]] == [True, True]


def test_recorder_s_rank_tells_its_stack_of_now_only(job):
    one = job(2).start(STACK_S=60)
    children = [one.rank(number) for number in (0, 1)]
    lines(one, children[0], f"recorder.tell(run={str(one.run)!r})")
    for n in (1, 2):
        children[1].send_signal(signal.SIGUSR2)
        wait(lambda n=n: len(one.found()) == n)
    assert [rank["stacks"].count("in waits_for_a_line") for rank in one.found()[1]["ranks"]] == [1, 1]


def test_recorder_s_rank_that_is_stopped_answers_later_and_asks_for_nothing(job):
    one = job(2).start()
    children = [one.rank(number) for number in (0, 1)]
    lines(one, children[0], f"recorder.tell(run={str(one.run)!r})")
    children[1].send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, children[1].pid, os.WSTOPPED)
    assert lines(one, children[0], "recorder.incident('deadline', 'late')") == str(one.run / "incident-1.json")
    children[1].send_signal(signal.SIGCONT)
    assert lines(one, children[1], "recorder.incident('error', 'late')") == str(one.run / "incident-2.json")
    first, second = one.found()
    assert not first["ranks"][1]["answered"]
    assert (second["reason"], second["rank"]) == ("error", 11)


@pytest.mark.parametrize("letter", ["x", "\N{CYRILLIC SMALL LETTER A}", "\N{GRINNING FACE}"], ids=ascii)
def test_recorder_s_long_words_are_written(job, letter):
    one = job(1).start()
    child = one.rank(0)
    lines(one, child, f"recorder.tell(run={str(one.run)!r})")
    path = lines(one, child, f"recorder.incident('exception', {letter!r} * 10_000, {letter!r} * 100_000)")
    assert path == str(one.run / "incident-1.json")
    (told,) = one.found()
    assert {*told["message"], *told["details"]} == {letter}


def test_recorder_of_a_folder_that_is_not_utf_8_is_answered(job):
    one = job(1).start()
    child = one.rank(0)
    run = os.fsencode(one.run) + b"-\xff"
    os.mkdir(run)
    lines(one, child, f"recorder.tell(run={os.fsdecode(run)!r})")
    for number in (1, 2):
        lines(one, child, "recorder.incident('error', 'words')")
        assert Path(os.fsdecode(run), f"incident-{number}.json").exists()


def test_keeper_ends_ranks_that_do_not_end(job):
    one = job(2).start(END_S=0.01)
    first, second = one.deaf(0, stderr=subprocess.PIPE), one.deaf(1)
    trains(one)
    second.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, second.pid, os.WSTOPPED)
    for number in (0, 1):
        one.tell(number, BYE, ENDS)
    assert (first.wait(60), second.wait(60)) == (-signal.SIGKILL, -signal.SIGKILL)
    assert b"rank 11 did not end" in first.stderr.read()
    assert [(each["reason"], each["rank"]) for each in one.over()] == [("end", 11)]


def test_keeper_keeps_a_job_s_output(job):
    one = job(1).start(END_S=0.01)
    (one.folder / "log").write_text("what the job has said\n")
    with open(one.folder / "log", "a") as log:
        child = one.deaf(0, stderr=log)
    one.tell(0, BYE, ENDS)
    assert child.wait(60) == -signal.SIGKILL
    said = (one.folder / "log").read_text()
    assert said.startswith("what the job has said\n")
    assert "rank 10 did not end" in said


@pytest.mark.parametrize("is_full", [False, True])
def test_keeper_ends_ranks_whose_output_nobody_reads(job, is_full):
    one, (reads, writes) = job(1).start(END_S=0.01), os.pipe()
    child = one.deaf(0, stderr=writes)
    os.set_blocking(writes, False)
    with contextlib.suppress(BlockingIOError):
        while is_full:
            os.write(writes, bytes(4096))
    os.close(writes)
    if not is_full:
        os.close(reads)
    one.tell(0, BYE, ENDS)
    try:
        assert child.wait(30) == -signal.SIGKILL
    finally:
        if is_full:
            os.close(reads)
