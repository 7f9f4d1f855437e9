"""Looks of a watchdog at rings that are filled by hand, of ranks that are not there."""

import os
from signal import SIGSTOP

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psframe.cluster.flight import machine, watchdog
from psframe.cluster.flight.watchdog import GRACE
from psframe.record import flight
from tests.helpers.watched import ALLREDUCE, BCAST, DEADLINE_S, LOOKS, Node, process, wait


@pytest.mark.parametrize("kind", [BCAST, flight.MPI, flight.WAIT, flight.SOCKET])
@pytest.mark.parametrize("late", [0, 1, 2])
def test_watchdog_names_who_is_late_and_the_call(kind, late):
    waiting = [number for number in range(3) if number != late]
    node = Node(3).enter(flight.STEP, 0, 1, 2).enter(kind, *waiting).enter(flight.FORWARD, late)
    call = "the other ranks of its node" if kind == flight.SOCKET else flight.NAMES[kind]
    node.late([10 + late], f"rank {10 + late} did not come to {call} ", f"where rank {10 + waiting[0]} waits")


def test_watchdog_names_all_who_are_late():
    Node(4).enter(BCAST, 1).enter(flight.FORWARD, 0, 2).late([10, 12, 13], "rank 10, 12, 13 did")


def test_watchdog_counts_a_rank_without_a_phase():
    Node(2).enter(BCAST, 0).late([11])


def test_watchdog_is_silent_about_who_waits_for_nobody():
    Node(3).enter(flight.STEP, 0, 1, 2).enter(flight.STORE, 1).silent(3 * LOOKS)


@pytest.mark.parametrize("moves", ["late", "waiting", "note", "step"])
def test_watchdog_begins_anew_with_progress(moves):
    node = Node(2).enter(flight.STEP, 0, 1).enter(BCAST, 0).silent(LOOKS)
    if moves == "note":
        node.rings[1].note(flight.STORE)
    elif moves == "step":
        node.rings[1].enter(flight.DATA)
    else:
        ring = node.rings[moves == "late"]
        ring.leave(0)
        ring.enter(BCAST if moves == "waiting" else flight.STEP)
    node.late([11])


def test_watchdog_is_silent_while_a_job_goes_on():
    node = Node(3)
    for look in range(3 * LOOKS):
        node.enter(BCAST, 0, 1)
        assert node.watchdog.look() is None
        for ring in node.rings[: 2 if look % (LOOKS - 1) else 3]:
            ring.note(flight.STORE)
            ring.leave(0)


@pytest.mark.parametrize("within", [False, True])
def test_watchdog_waits_for_a_rank_that_compiles(within):
    node = Node(2).enter(BCAST, 0).enter(flight.COMPILE, 1)
    if within:
        node.enter(flight.FORWARD, 1)
    node.silent(3 * LOOKS)
    node.rings[1].leave(0)
    node.late([11])


@pytest.mark.parametrize("state", [0, flight.ENDED, "spare"])
def test_watchdog_does_not_count_a_rank_that_is_away(state):
    node = Node(3).enter(BCAST, 0)
    if state == "spare":
        node.enter(flight.SPARE, 2).enter(BCAST, 2)
    else:
        node.rings[2].put(flight.STATE, state)
    node.late([11])


def test_watchdog_without_another_rank_names_none():
    node = Node(2).enter(BCAST, 0)
    node.rings[1].put(flight.STATE, flight.ENDED)
    node.late([], "some rank did not come to MPI bcast", "where rank 10 waits")


@pytest.mark.parametrize("kind", [flight.GATE, flight.NODES])
def test_watchdog_leaves_a_wait_with_a_deadline_of_its_own(kind):
    Node(3).enter(kind, 0, 1).enter(flight.STEP, 2).silent(3 * LOOKS)


@pytest.mark.parametrize("kind", [flight.GATE, flight.NODES])
def test_watchdog_does_not_blame_who_waits_at_a_gate(kind):
    Node(3).enter(BCAST, 0).enter(kind, 1).late([12])


def test_watchdog_names_who_is_in_another_call():
    Node(4).enter(BCAST, 0, 1, 3).enter(ALLREDUCE, 2).late([12], "MPI bcast", "where rank 10 waits")


def test_watchdog_names_nobody_where_all_are_in_one_call():
    Node(3).enter(BCAST, 0, 1, 2).late([], "some rank did not come to MPI bcast")


def test_watchdog_names_who_is_in_an_earlier_step():
    node = Node(3).enter(BCAST, 0, 2).enter(ALLREDUCE, 1)
    for number, step in enumerate((5, 5, 4)):
        node.rings[number].step(1, step)
    node.late([12])


@pytest.mark.parametrize("end", [False, True], ids=["stopped", "ended"])
def test_watchdog_names_who_is_stopped_in_a_call(end):
    with process("input()") as child:
        node = Node(3).enter(BCAST, 0, 2).enter(ALLREDUCE, 1)
        for number, ring in enumerate(node.rings):
            ring.step(1, number)
        node.rings[2].put(flight.PID, child.pid)
        child.kill() if end else child.send_signal(SIGSTOP)
        os.waitid(os.P_PID, child.pid, (os.WEXITED if end else os.WSTOPPED) | os.WNOWAIT)
        node.late([12], "where rank 10 waits")


def test_watchdog_waits_until_all_have_been_in_calls_for_as_long():
    node = Node(3).enter(BCAST, 0, 1).silent(LOOKS - 1).enter(ALLREDUCE, 2).silent(LOOKS)
    node.names([12], "MPI bcast")


def test_watchdog_of_the_second_rank_leaves_the_first_some_looks():
    node = Node(3, me=1).enter(BCAST, 0, 1).silent(LOOKS + GRACE)
    node.names([12])


@pytest.mark.parametrize("me", [0, 1])
def test_watchdog_of_a_node_leaves_others_some_looks(me):
    node = Node(2, me=me, is_whole=False).enter(flight.EXCHANGE, 0, 1).enter(BCAST, 0, 1).silent(LOOKS + GRACE)
    node.names([], "a rank of another node did not come to MPI bcast")


def test_watchdog_of_a_node_knows_of_its_own_late_rank():
    Node(2, is_whole=False).enter(BCAST, 0).late([11])


def test_watchdog_counts_grace_anew():
    node = Node(3, me=1).enter(BCAST, 0, 1).silent(LOOKS + GRACE)
    node.rings[2].note(flight.STORE)
    node.silent(LOOKS + GRACE)
    node.names([12])


def test_watchdog_gives_a_rank_that_starts_time_to_compute(monkeypatch):
    with process("while True: pass") as busy:
        monkeypatch.setattr(watchdog, "START_S", DEADLINE_S + 20)
        node = Node(2, state=flight.STARTS).enter(BCAST, 0).enter(flight.READ, 1)
        node.rings[1].put(flight.PID, busy.pid)
        wait(lambda: machine.process(busy.pid).get("cpu_s", 0.0) > 0)
        node.silent(LOOKS)
        for _ in range(20):
            node.silent(1)
            before = machine.process(busy.pid)["cpu_s"]
            wait(lambda before=before: machine.process(busy.pid)["cpu_s"] > before)
        node.names([11])


@pytest.mark.parametrize("state", [flight.STARTS, flight.TRAINS])
def test_watchdog_gives_a_rank_that_does_not_compute_no_such_time(monkeypatch, state):
    monkeypatch.setattr(watchdog, "START_S", 2 * DEADLINE_S)
    with process("input()") as child:
        child.send_signal(SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)
        node = Node(2, state=state).enter(BCAST, 0)
        node.rings[1].put(flight.PID, child.pid)
        node.watchdog.ranks[1].look()
        node.watchdog.ranks[1].computes()  # what it had used before does not count
        node.silent(LOOKS)
        node.names([11])


@given(st.floats(1e-3, 1e9))
def test_watchdog_looks_often_enough(deadline_s):
    every_s = Node(2, deadline_s=deadline_s).watchdog.every_s
    assert watchdog.LEAST_S <= every_s <= watchdog.MOST_S
    assert every_s == watchdog.LEAST_S or every_s * 20 <= max(deadline_s, 20) * 1.01


@given(
    st.lists(st.tuples(st.sampled_from(["enter", "leave", "note"]), st.integers(0, 2)), max_size=40), st.integers(0, 1)
)
def test_watchdog_tells_only_of_ranks_that_it_has(calls, me):
    node = Node(3, me=me, deadline_s=0.1)
    kinds = [BCAST, ALLREDUCE, flight.STEP, flight.GATE, flight.COMPILE, flight.SPARE]
    for place, (name, number) in enumerate(calls):
        given_ = {"enter": [kinds[place % 6]], "leave": [0], "note": [flight.STORE]}[name]
        getattr(node.rings[number], name)(*given_)
        lost = node.watchdog.look()
        assert lost is None or {*lost.ranks} < {10, 11, 12}


@pytest.mark.parametrize(
    ("n", "me", "is_whole", "starts"),
    [
        (2, 0, True, True),
        (2, 1, True, True),
        (3, 2, True, False),
        (1, 0, True, False),
        (1, 0, False, True),
    ],
)
def test_watchdog_runs_on_two_ranks_that_have_others(n, me, is_whole, starts):
    node = Node(n, me=me, is_whole=is_whole)
    node.watchdog.start()
    assert node.watchdog.thread.is_alive() == starts
    node.watchdog.stop()
    if starts:
        node.watchdog.thread.join(60)
    assert not node.watchdog.thread.is_alive()


@pytest.mark.parametrize("told", [False, True])
def test_watchdog_ends_the_job_unless_another_rank_has_told(told):
    node = Node(2, deadline_s=0.05).enter(BCAST, 0)
    node.told += [True] * told
    look = node.watchdog.look

    def looked():
        if lost := look():
            node.watchdog.stop()
        return lost

    node.watchdog.look = looked
    node.watchdog.start()
    node.watchdog.thread.join(60)
    assert [lost.ranks for lost in node.ended] == [(11,)] * (not told)


@pytest.mark.parametrize("kinds", [(), (flight.EPOCH,)])
def test_watchdog_gives_a_node_that_may_compute_the_limit_of_a_start(kinds, monkeypatch):
    """Its own watchdog would tell of a rank that is stuck there."""
    monkeypatch.setenv("PSFRAME_START_S", "300")
    node = Node(2, is_whole=False, state=flight.TRAINS if kinds else flight.STARTS)
    for kind in (*kinds, BCAST):
        node.enter(kind, 0, 1)
    node.silent(300 + GRACE)
    node.names([], "a rank of another node did not come to MPI bcast for 300 s (PSFRAME_START_S)")


def test_watchdog_of_a_node_does_not_blame_who_waits_for_its_first_rank():
    node = Node(3, is_whole=False).enter(BCAST, 0).enter(flight.SOCKET, 1, 2)
    node.silent(LOOKS + GRACE)
    node.names([], "a rank of another node did not come to MPI bcast", "where rank 10 waits")


@pytest.mark.parametrize("kinds", [(), (flight.EVALUATE,), (flight.EPOCH, flight.STEP, flight.EXCHANGE)])
def test_watchdog_gives_a_node_no_such_time_while_all_train(kinds):
    node = Node(2, is_whole=False)
    for kind in (*kinds, BCAST):
        node.enter(kind, 0, 1)
    node.silent(LOOKS + GRACE)
    node.names([], "a rank of another node did not come to MPI bcast")


def test_watchdog_follows_a_job_that_goes_on_without_a_rank():
    node = Node(4).enter(BCAST, 0, 2, 3).enter(flight.FORWARD, 1)  # which has died
    node.told.append(True)
    left = Node(3).meeting
    left.names = [10, 12, 13]
    node.watchdog.follow(left, [0, 2, 3], True)
    node.watchdog.stop()
    assert node.watchdog.thread.ident is not None, "it was not started"
    node.rings[2].leave(0)
    node.late([12], "where rank 10 waits")
