"""Causes between nodes, and in calls of MPI, in incidents: told where all nodes wait, and not where one is behind."""

import pytest

from psframe.doctor.why.causes import causes
from psframe.doctor.why.evidence import Evidence
from psframe.record import flight
from tests.helpers import incidents
from tests.helpers.incidents import MINE, asked, at_gate, call_of, in_call, node, rank, steps

HOSTS = ["a", "b"]


def found(folder, *nodes):
    return [cause.sentence for cause in causes(Evidence(incidents.write(folder, *nodes)))]


def waits(number, seconds, kind=flight.NODES, n=10, **more):
    """A rank that goes on, and has waited for so many seconds in each of the last ten."""
    events = [[kind, 0, 0, 0, 10.0 - second * 10 / n, seconds] for second in range(n)]
    return at_gate(number, 0.01, n_events_later=410, events=[*steps(10, 0.001), *events], **more)


def both(here, there):
    return asked(here, hosts=HOSTS), asked(there, hosts=HOSTS, number=1)


@pytest.mark.parametrize("began_s", [9.0, 400.0])
@pytest.mark.parametrize("kind", [flight.NODES, flight.MPI + flight.CALLS.index("Allreduce")])
def test_a_slow_link_is_told_where_all_nodes_wait(tmp_path, monkeypatch, kind, began_s):
    """However long ago the epoch began: what a rank's last events do not tell is not known."""
    monkeypatch.setattr(incidents, "IN_STEP", ((flight.EPOCH, 2, 0, began_s), incidents.IN_STEP[1]))
    told = found(tmp_path, *both([waits(0, 0.8, kind), waits(1, 0.9, flight.GATE)], [waits(2, 0.7, kind)]))
    assert told[0].startswith("The exchange between 2 nodes takes 69% of the time")


@pytest.mark.parametrize(
    "nodes",
    [
        both([waits(0, 0.8)], [waits(1, 0.1)]),  # one comes last: its host is slow, or has more to do
        both([waits(0, 0.8, flight.EXCHANGE), waits(1, 0.1, flight.EXCHANGE)], [waits(2, 0.8, flight.EXCHANGE)]),
        both([waits(0, 0.009, n=900)], [waits(1, 0.009, n=900)]),  # short waits
        both([waits(0, 0.8)], [waits(1, 0.8)])[:1],  # nothing is known of the other
        (asked([waits(0, 0.8), waits(1, 0.8)]),),  # there is no other
        both([waits(0, 0.8)], [waits(1, 0.8), incidents.stopped(2)]),
        both([waits(0, 0.8)], [incidents.ended(1)]),
        both([waits(0, 0.8, flight.EXCHANGE)], [waits(1, 0.8, flight.EXCHANGE)]),  # within nodes
    ],
    ids=range(8),
)
def test_a_link_is_not_blamed_without_need(tmp_path, nodes):
    assert not any("exchange between" in sentence for sentence in found(tmp_path, *nodes))


def test_a_rank_that_polls_for_other_nodes_is_not_accused_of_its_core(tmp_path):
    def here(polls):
        return [waits(0, polls, delayed=0.6), waits(1, 0.0), waits(2, 0.0)]

    assert found(tmp_path, asked(here(0.1)))[0].startswith("Rank 0 (a) shares core 0 with another process")
    (tmp_path / "2").mkdir()
    assert not found(tmp_path / "2", asked(here(0.7)))


def test_nodes_that_wait_for_each_other_are_told(tmp_path):
    files = [node([incidents.for_nodes(n), incidents.at_gate(n + 2)], hosts=HOSTS, number=n) for n in (0, 1)]
    cause = causes(Evidence(incidents.write(tmp_path, *files)))[0]
    assert cause.evidence[0].startswith("ranks of all nodes wait for the others")


def left(number, n_bytes):
    """A rank that has raised out of a call."""
    phases = (*incidents.IN_STEP, (flight.EXCHANGE, 15, 0, 3.0))
    return rank(number, *phases, events=[[call_of("Allreduce"), 3, -1, n_bytes, 3.0, 0.1]])


@pytest.mark.parametrize("odd", range(3))
@pytest.mark.parametrize("words", ["Exception: MPI_ERR_TRUNCATE: message truncated", "Exception: Message truncated, e"])
def test_a_call_of_another_size_is_told_with_the_line(tmp_path, odd, words):
    ranks = [left(odd, 32) if number == odd else in_call(number, n_bytes=64) for number in range(3)]
    details = '  File "/home/me/mine.py", line 55, in total\n  File "src/MPI.src/Comm.pyx", line 9, in f\n'
    told = found(tmp_path, node(ranks, "exception", odd, words, details=details))
    named = f"rank {odd} (a) with 32 bytes at mine.py, line 55 (total), and rank {int(odd == 0)} (a) with 64."
    assert told == [f"The ranks call MPI Allreduce with different sizes: {named}"]


def test_calls_of_different_sizes_that_do_not_return_are_told(tmp_path):
    ranks = [in_call(0, n_bytes=64), in_call(1, n_bytes=32, stacks=MINE), in_call(2, n_bytes=64)]
    assert "rank 1 (a) with 32 bytes at mine.py, line 33 (spin), and rank 0" in found(tmp_path, node(ranks))[0]


@pytest.mark.parametrize(
    "ranks",
    [
        [in_call(0), in_call(1)],
        [in_call(0, "Gatherv", 5), in_call(1, "Gatherv", 6)],
        [in_call(0, n_bytes=0), in_call(1, n_bytes=8)],
        [in_call(0, n_bytes=4), in_call(1, n_bytes=8, since_s=0.1)],
        [in_call(0, n_bytes=4), in_call(1, n_bytes=8), incidents.in_layer(2)],
    ],
    ids=range(5),
)
def test_sizes_that_may_be_are_not_told(tmp_path, ranks):
    assert not any("different sizes" in sentence for sentence in found(tmp_path, node(ranks)))
