"""Causes where ranks end, or cannot be seen: the one that ended is told, and what is beside the matter is left out."""

from psframe.doctor.why.__main__ import main
from psframe.doctor.why.causes import causes
from psframe.doctor.why.evidence import Evidence
from psframe.record import flight
from tests.helpers import incidents
from tests.helpers.incidents import MINE, asked, node, rank

HOSTS = ["a", "b"]


def found(folder, *nodes):
    folder.mkdir(exist_ok=True)
    return causes(Evidence(incidents.write(folder, *nodes)))


def first(folder, *nodes):
    return found(folder, *nodes)[0].sentence


def test_a_rank_that_computes_while_another_dies_is_not_accused(tmp_path):
    """It may take long for it."""
    ranks = [incidents.at_gate(0), incidents.ended(1), incidents.in_layer(2, since_s=0.7, events=[])]
    (cause,) = found(tmp_path, node(ranks, "death", 1, "rank 1 has ended without a word"))
    assert cause.sentence.startswith("Rank 1 (a) died")


def test_a_loss_that_mpi_tells_is_of_the_rank_that_has_ended(tmp_path):
    message = "psframe: a rank has died, as MPI tells; continue with checkpoint.resume=auto"
    assert first(tmp_path, node([incidents.at_gate(0), incidents.ended(1)], "loss", 0, message)).startswith(
        "Rank 1 (a) d"
    )
    assert first(tmp_path / "2", node([incidents.at_gate(0)], "loss", 0, message)).startswith("a rank has died, as MPI")
    here = node([incidents.at_gate(0)], "loss", 0, message, hosts=HOSTS)
    there = node([incidents.ended(1)], "death", 1, hosts=HOSTS, number=1)
    assert first(tmp_path / "3", here, there).startswith("Rank 1 (b) died")


def test_a_loop_of_a_rank_that_the_keeper_does_not_see_is_told(tmp_path):
    """In a container of its own, which shares no process numbers."""
    ranks = [incidents.at_gate(0), incidents.in_layer(1, stacks=MINE, in_sight=False)]
    ranks[1]["at"] = [{}, {}, {}]
    assert first(tmp_path, node(ranks)).startswith("Rank 1 (a) does not return from your code at mine.py, line 33")


def test_a_spare_is_not_among_those_who_wait(tmp_path):
    spare = rank(2, (flight.SPARE, 0, 0, 500.0), (flight.SOCKET, 0, 0, 500.0))
    cause = found(tmp_path, node([incidents.at_gate(0), incidents.in_layer(1, stacks=MINE), spare]))[0]
    assert any(line.startswith("rank 0 (a) waits") for line in cause.evidence)
    stopped = rank(2, (flight.SPARE, 0, 0, 500.0), (flight.SOCKET, 0, 0, 500.0), state="T")
    told = first(tmp_path / "3", node([incidents.at_gate(0), incidents.at_gate(1), stopped]))
    assert told.startswith("Rank 2 (a) was stopped")
    calls = [incidents.in_call(n, n_bytes=64 + 64 * n) for n in range(2)]
    spare = rank(2, (flight.SPARE, 0, 0, 500.0), (flight.SOCKET, 0, 0, 500.0))
    assert "call MPI Allreduce with different sizes" in first(tmp_path / "2", node([*calls, spare]))


def test_what_a_job_survives_does_not_hide_how_it_ends(tmp_path, capsys):
    """A person asks on one host for what the job does, and a rank of another host dies."""
    dump = asked([incidents.at_gate(0, 0.01)], hosts=HOSTS)
    death = node([incidents.ended(1)], "death", 1, hosts=HOSTS, number=1)
    incidents.write(tmp_path, dump, {**death, "time": dump["time"] + 20})
    assert main([str(tmp_path)]) == 0
    assert "1. Rank 1 (b) died" in capsys.readouterr().out
