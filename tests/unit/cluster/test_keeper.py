"""Keeper of a node's rings as a process, and ranks that ask it, end, or are stuck."""

import os
import resource
import signal

import pytest

from psframe.cluster.flight.keeper import ASK, BYE, FACTS, MOST_FAULTS, STACKS
from psframe.record import flight
from tests.helpers.keepers import message, wait


def test_keeper_writes_what_all_ranks_did(job):
    one = job(3, host="h").start(0, 1, 2)
    one.trains()
    one.rings[1].put(flight.STATE, flight.TRAINS)
    one.rings[1].step(2, 40)
    one.rings[1].note(flight.STORE, 5, 6)
    one.rings[1].enter(flight.STEP, 40)
    assert one.ask(2) == [str(one.run / "incident-1.json")]
    (told,) = one.found()
    assert [told[key] for key in ("reason", "rank", "message", "details")] == ["exception", 12, "by 2", "why"]
    assert told["facts"] == {"node": 0, "host": "h", "run": str(one.run)}
    assert [rank["rank"] for rank in told["ranks"]] == [10, 11, 12]
    rank = told["ranks"][1]
    assert [rank[key] for key in ("state", "step", "epoch", "n_events")] == [flight.TRAINS, 40, 2, 1]
    assert [phase[:3] for phase in rank["phases"]] == [[flight.STEP, 40, 0]]
    assert [event[:4] for event in rank["events"]] == [[flight.STORE, 0, 5, 6]]
    assert (rank["ended_s"], rank["said_goodbye"], rank["answered"], rank["stacks"]) == (None, False, False, "")
    assert len(told["samples"]) >= 2
    assert all(sample["machine"] for sample in told["samples"])


def test_keeper_answers_who_asks_at_once_with_one_file(job):
    one = job(3).start(0, 1)
    one.trains()
    one.deaf(2)
    one.keeper.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, one.keeper.pid, os.WSTOPPED)
    for number in (0, 1):
        one.ends[number].send(message(ASK, {"reason": "exception", "message": "", "details": ""}))
    one.keeper.send_signal(signal.SIGCONT)
    assert [one.answer(0), one.answer(1)] == [str(one.run / "incident-1.json")] * 2
    assert one.ask(0) == [str(one.run / "incident-2.json")]


@pytest.mark.parametrize("dead", [0, 2])
def test_keeper_names_a_rank_that_ends_without_a_word(job, dead):
    one = job(3).start(0, 1, 2)
    one.trains()
    one.end(dead)
    wait(one.found)
    (told,) = one.over()  # the others end by that one
    assert (told["reason"], told["rank"]) == ("death", 10 + dead)
    assert f"rank {10 + dead} " in told["message"]
    assert [rank["ended_s"] is None for rank in told["ranks"]] == [number != dead for number in range(3)]


def test_keeper_of_a_job_that_goes_on_names_the_next_death_too(job):
    one = job(3).start(0, 1, 2)
    one.trains()
    one.end(1)
    wait(one.found)
    one.tell(0, FACTS, {"left": 2})
    one.end(2)
    wait(lambda: len(one.found()) == 2)
    assert [told["rank"] for told in one.over()] == [11, 12]


def test_keeper_writes_a_loss_that_mpi_tells_once(job):
    one = job(3).start(0, 1, 2)
    one.trains()
    one.end(1)
    wait(one.found)
    assert one.ask(0, reason="loss") == [str(one.run / "incident-1.json")]
    assert one.ask(0, reason="exception") == [str(one.run / "incident-2.json")]
    assert [told["reason"] for told in one.over()] == ["death", "exception"]


def test_keeper_tells_the_signals_of_a_rank_that_has_ended(job):
    one = job(2).start(0, 1)
    one.trains()
    one.tell(1, signal.SIGWINCH)
    one.end(1)
    wait(one.found)
    assert one.found()[0]["ranks"][1]["signals"] == [signal.SIGWINCH]


@pytest.mark.parametrize(
    "told", [(1, BYE), (0, BYE), (1, signal.SIGTERM), (1, signal.SIGINT), (1, signal.SIGUSR1)], ids=str
)
def test_keeper_is_silent_about_an_end_in_good_order(job, told):
    one = job(3).start(0, 1, 2)
    one.trains()
    one.tell(*told)
    one.end(1)
    assert one.ask(2, reason="error") == [str(one.run / "incident-1.json")]
    assert [each["reason"] for each in one.over()] == ["error"]


def test_keeper_lets_processes_live_that_do_more_than_their_job(job):
    """As a script that calls psframe.train's main, and goes on."""
    one = job(2).start(1, END_S=0.1)
    deaf = one.deaf(0)
    one.trains()
    for number in (0, 1):
        one.tell(number, BYE)
    assert one.ask(1, reason="asked") == [str(one.run / "incident-1.json")], "it takes longer than END_S"
    assert deaf.poll() is None
    assert [told["reason"] for told in one.found()] == ["asked"]


def test_keeper_is_silent_before_a_run_has_a_folder(job):
    one = job(2).start(0, 1)
    one.tell(0, FACTS, {"dir": str(one.run)})
    one.end(1)
    assert one.over() == []
    assert os.listdir(one.folder) == ["run"]


def test_keeper_is_silent_about_a_rank_that_it_has_not_heard_of(job):
    one = job(2).start(0)
    one.trains()
    one.end(1)
    one.tell(0, BYE)
    assert one.over() == []


def test_keeper_writes_a_few_incidents_at_most(job):
    one = job(1).start(0)
    one.trains()
    paths = [one.ask(0, reason="error")[0] for _ in range(MOST_FAULTS + 2)]
    assert paths == [*(str(one.run / f"incident-{number}.json") for number in range(1, MOST_FAULTS + 1)), "", ""]
    assert len(one.over()) == MOST_FAULTS


def test_keeper_ends_with_the_last_rank_and_by_no_signal(job):
    one = job(2).start(0, 1)
    one.trains()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        one.keeper.send_signal(number)
    assert one.ask(0) == [str(one.run / "incident-1.json")]
    one.tell(0, BYE)
    one.end(0)
    assert one.ask(1, reason="error") == [str(one.run / "incident-2.json")]
    assert len(one.over()) == 2


def test_keeper_writes_what_it_is_asked_for_and_hides_no_end_by_it(job):
    one = job(2).start(0, 1)
    one.trains()
    one.keeper.send_signal(signal.SIGUSR2)
    wait(one.found)
    one.end(1)
    wait(lambda: len(one.found()) == 2)
    assert [each["reason"] for each in one.over()] == ["asked", "death"]


@pytest.mark.parametrize("has_dir", [True, False])
def test_keeper_writes_elsewhere_what_the_run_s_folder_does_not_take(job, has_dir):
    one = job(1).start(0)
    one.trains()
    (one.folder / "dir").mkdir()
    if has_dir:
        one.tell(0, FACTS, {"dir": str(one.folder / "dir")})
    (one.run / "incident-1.json.part").mkdir()
    one.ask(0, reason="error")
    (one.run / "incident-1.json.part").rmdir()
    one.run.rmdir()
    one.ask(0)
    place = one.folder / "dir" if has_dir else one.folder
    assert {"incident-1.json", "incident-2.json"} <= {*os.listdir(place)}


class Code(str):
    """Words that the keeper's process runs before it begins."""

    __repr__ = str.__str__


def test_keeper_writes_elsewhere_while_the_run_s_disk_does_not_answer(job):
    """As a network disk of a server that is gone."""
    one = job(2)
    hangs = f"lambda path, seen=os.path.isdir: time.sleep(600) if path == {str(one.run)!r} else seen(path)"
    patched = Code(f"exec({f'import os, time; os.path.isdir = {hangs}'!r})")
    one.start(0, 1, LOOK_S=0.2, _=patched)
    one.trains()
    assert one.ask(0) == [str(one.folder / "incident-1.json")]
    one.end(1)
    wait(lambda: (one.folder / "incident-1.json").exists())
    one.tell(0, BYE)
    one.end(0)
    assert one.keeper.wait(60) == 0, "a disk that hangs must not keep it"


def test_keeper_goes_on_while_no_disk_takes_an_incident(job):
    one = job(1).start(0)
    one.trains()
    most = resource.prlimit(one.keeper.pid, resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
    assert one.ask(0) == [""]
    assert os.listdir(one.run) == []
    resource.prlimit(one.keeper.pid, resource.RLIMIT_FSIZE, most)
    assert one.ask(0) == [str(one.run / "incident-1.json")]


GARBAGE = {
    STACKS: [b"", b"{", b"[9, 0, 0]", b"[1]", b"5", b'["x", 0, 0]'],
    FACTS: [b"", b"\xff", b"[1]", b'{"run": 5}', b'{"run": "a\\u0000"}', b'{"x": NaN}', b'{"x": "' + b"x" * 70_000],
    ASK: [b"", b"{}", b"[]", b'{"reason": "x", "more": 1}'],
    255: [b"", b"{}"],
}


@pytest.mark.parametrize(("kind", "content"), [(kind, each) for kind, all_of in GARBAGE.items() for each in all_of])
def test_keeper_outlives_a_message_that_is_none(job, kind, content):
    one = job(2).start(0, 1)
    one.ends[1].send(bytes([kind]) + content)
    one.trains()
    assert one.ask(0, reason="error") == [str(one.run / "incident-1.json")]
