"""Causes of incidents: each is told first where it must be, of the right rank, and nobody else is accused."""

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from psframe.doctor.why.__main__ import main
from psframe.doctor.why.causes import causes
from psframe.doctor.why.evidence import Evidence
from psframe.record import flight
from tests.helpers import incidents
from tests.helpers.incidents import LATE, MACHINE, MINE, asked, changed, node, rank

RANDOM = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
HOSTS = ["a", "b", "c"]
WAITERS = (incidents.at_gate, incidents.in_call, incidents.in_exchange, incidents.for_nodes)
TRACE = (
    '  File "/home/me/mine.py", line 55, in forward\n    raise ValueError\n  File "/lib/python3/x.py", line 9, in f\n'
)
HUNG = (  # a rank, and what is told of it
    (incidents.in_layer, "does not return from your code at mine.py, line 33 (spin), in forward through layer 1 Mine"),
    (incidents.locked, "waits in your code at mine.py, line 33 (spin), in forward through layer 1 Mine"),
)


def found(folder, *nodes):
    return causes(Evidence(incidents.write(folder, *nodes)))


def first(folder, *nodes):
    """Return the first cause's sentence, "" if there is none."""
    return next((cause.sentence for cause in found(folder, *nodes)), "")


def accused(cause):
    """Return the ranks that a cause's sentence names."""
    names = re.findall(r"[Rr]anks? ([0-9, ]+)", cause.sentence)
    return {int(number) for name in names for number in re.findall("[0-9]+", name)}


@st.composite
def crowds(draw):
    """A rank's number, and others, which wait in ways of all kinds."""
    number, n = draw(st.integers(0, 12)), draw(st.integers(2, 13))
    waits = draw(st.lists(st.sampled_from(WAITERS), min_size=n, max_size=n))
    return number, [wait(other) for other, wait in enumerate(waits) if other != number]


@RANDOM
@given(crowds())
def test_a_stopped_rank_is_the_cause(tmp_path_factory, crowd):
    number, others = crowd
    at = tmp_path_factory.mktemp("run")
    told = found(at, node([incidents.stopped(number), *others], message=LATE.format(number)))
    assert told[0].sentence.startswith(f"Rank {number} (a) was stopped by a signal, in forward through layer 1 Mine")
    assert f"kill -CONT {1000 + number}`" in told[0].advice
    assert accused(told[0]) == {number}


@pytest.mark.parametrize(("make", "words"), HUNG)
@RANDOM
@given(crowd=crowds(), stays=st.sampled_from(["deadline", "late", "start"]))
def test_a_rank_that_does_not_come_back_is_the_cause(tmp_path_factory, crowd, stays, make, words):
    number, others = crowd
    hung = make(number, stacks=MINE)
    told = found(tmp_path_factory.mktemp("run"), node([*others, hung], stays, number, LATE.format(number)))
    told = [
        cause for cause in told if not cause.sentence.startswith("psframe: ") and "did not come" not in cause.sentence
    ]
    assert told[0].sentence.startswith(f"Rank {number} (a) {words}")
    assert all(accused(cause) == {number} for cause in told)


def test_a_stopped_host_is_named_once(tmp_path):
    here = node([incidents.for_nodes(0), incidents.at_gate(1)], hosts=HOSTS[:2])
    there = node([incidents.stopped(2), incidents.stopped(3)], hosts=HOSTS[:2], number=1)
    cause, *others = found(tmp_path, here, there)
    assert cause.sentence.startswith("All ranks of host b were stopped")
    assert "-CONT 1002 1003`" in cause.advice
    assert not any(other.weight > 0.7 * cause.weight for other in others)


def test_a_stopped_rank_of_a_node_is_not_its_whole_host(tmp_path):
    ranks = [incidents.stopped(0), incidents.at_gate(1), incidents.stopped(2)]
    assert first(tmp_path, node(ranks)).startswith("Ranks 0, 2 were stopped")


def test_a_death_names_the_rank_whose_end_was_seen(tmp_path):
    ranks = [incidents.ended(0, said_goodbye=True), incidents.ended(1), incidents.ended(2), incidents.at_gate(3)]
    cause = found(tmp_path, node(ranks, "death", 2, "rank 2 has ended without a word"))[0]
    assert cause.sentence == "Rank 2 (a) died in backward through layer 2 Dense (step 15, epoch 2)."
    assert "SIGKILL" in cause.advice


def test_a_death_by_the_kernel_is_told(tmp_path):
    killed = changed(MACHINE, cgroup__groups__job__killed=3, memory__MemAvailable=1 << 30)
    ranks = [incidents.at_gate(0), incidents.ended(1)]
    cause = found(tmp_path, node(ranks, "death", 1, "rank 1 has ended without a word", after=killed))[0]
    assert cause.sentence.startswith("Rank 1 (a) died in backward")
    assert "the kernel killed it" in cause.sentence
    assert "memory left on a: 1,024 MiB" in cause.evidence
    assert "more memory" in cause.advice


@pytest.mark.parametrize(("ago", "is_by_kernel"), [((10,), True), ((10, 20), False)])
def test_a_death_is_by_the_kernel_if_a_sample_was_taken_while_the_rank_ended(tmp_path, ago, is_by_kernel):
    """The kernel counts what it kills before the process is gone; what it killed long before is another matter."""
    killed = changed(MACHINE, cgroup__groups__job__killed=3)
    content = node([incidents.at_gate(0), incidents.ended(1)], "death", 1, before=killed)
    for seconds in ago:
        machine = MACHINE if seconds == ago[-1] else killed
        content["samples"].insert(0, {"at": incidents.AT[0] - seconds, "machine": machine, "processes": {}})
    assert ("the kernel killed it" in first(tmp_path, content)) == is_by_kernel


def test_a_death_on_another_host_is_not_by_this_ones_kernel(tmp_path):
    killed = changed(MACHINE, cgroup__groups__job__killed=3)
    here = node([incidents.at_gate(0)], "death", 1, hosts=HOSTS[:2], after=killed)
    there = node([incidents.ended(1)], "death", 1, hosts=HOSTS[:2], number=1)
    sentence = first(tmp_path, here, there)
    assert sentence.startswith("Rank 1 (b) died")
    assert "kernel" not in sentence


@pytest.mark.parametrize("reason", ["deadline", "asked", "error", "exception", "end", "start"])
def test_a_rank_that_has_ended_is_accused_in_a_death_alone(tmp_path, reason):
    told = found(tmp_path, node([incidents.at_gate(0), incidents.ended(1)], reason, 0, "a sentence"))
    assert not any(1 in accused(cause) for cause in told)


def test_an_exception_names_its_rank_and_the_users_line(tmp_path):
    ranks = [incidents.in_layer(0, since_s=9.0, stacks=MINE), rank(1), incidents.at_gate(2)]
    told = found(tmp_path, node(ranks, "exception", 1, "ValueError: no", details=TRACE))
    assert [cause.sentence for cause in told] == [
        "Rank 1 ended with ValueError: no. It was raised in mine.py, line 55 (forward)."
    ]


def test_a_full_disk_is_told_and_one_that_is_not_known_is_not_full(tmp_path):
    message = "psframe: the run must be written, got 'x' (No space left on device)"
    full = found(tmp_path, node([rank(0)], "error", 0, message, after=changed(MACHINE, disk__free=4096)))[0]
    assert "has 0.0 MiB left" in full.evidence[0]
    assert "Free space" in full.advice
    unknown = {key: value for key, value in MACHINE.items() if key != "disk"}
    cause = found(tmp_path, node([rank(0)], "error", 0, "psframe: lr must be lower", before=unknown))[0]
    assert cause.sentence == "lr must be lower."
    assert not cause.advice
    assert not cause.evidence


@pytest.mark.parametrize("kind", [flight.STORE, flight.CHECKPOINT, flight.RECORD])
def test_a_wait_for_a_disk_is_told(tmp_path, kind):
    ranks = [rank(0, (kind, 0, 0, 4.0), state="D", call="io_schedule"), incidents.at_gate(1)]
    cause = found(tmp_path, node(ranks))[0]
    assert cause.sentence.startswith("Rank 0 (a) waits for a disk, in ")
    assert "io_schedule" in cause.evidence[-1]


def test_the_rank_that_is_still_for_longest_comes_first(tmp_path):
    ranks = [
        incidents.in_layer(0, 0, since_s=0.7),
        incidents.in_layer(1, since_s=3.3, stacks=MINE),
        incidents.at_gate(2),
    ]
    assert first(tmp_path, node(ranks, of=1)).startswith("Rank 1 (a) does not return from your code")


def test_a_checkpoint_that_has_just_begun_does_not_hide_a_loop(tmp_path):
    writes = rank(0, (flight.CHECKPOINT, 0, 0, 0.6), state="D")
    ranks = [writes, incidents.in_layer(1, since_s=3.3, stacks=MINE), incidents.at_gate(2)]
    assert first(tmp_path, node(ranks, of=1)).startswith("Rank 1 (a) does not return from your code")


def test_calls_that_do_not_fit_are_told(tmp_path):
    ranks = [incidents.in_call(0), incidents.in_call(1, "Bcast"), incidents.in_call(2)]
    cause = found(tmp_path, node(ranks, of=1))[0]
    assert cause.sentence == (
        "The ranks call MPI in ways that do not fit: rank 1 (a) is in MPI Bcast of 4,096 bytes (step 15, epoch 2), and "
        "rank 0 (a) in MPI Allreduce of 4,096 bytes (step 15, epoch 2)."
    )


FIT = [  # ranks that wait, whose calls fit, or of which another thing is to be told
    [incidents.in_call(0), incidents.in_call(1)],
    [incidents.in_call(0, step=14), incidents.in_call(1, "Bcast")],
    [incidents.in_call(0, "Recv"), incidents.in_call(1, "Ssend"), incidents.in_call(2, "Recv")],
    [incidents.in_call(0, "Recv"), incidents.in_call(1, "Sendrecv"), incidents.in_call(2, "Sendrecv")],
    [incidents.in_call(0, "recv"), incidents.in_call(1, "Mprobe"), incidents.in_call(2, "Request.Wait")],
    [incidents.in_call(0, "Win.Flush"), incidents.in_call(1, "Win.Lock"), incidents.at_gate(2)],
    [incidents.in_call(0), incidents.in_call(1, "Bcast", n_events_later=401)],
    [incidents.in_call(0), incidents.in_call(1, "Bcast"), incidents.in_layer(2)],
    [incidents.in_call(0), incidents.in_call(1, "Bcast"), incidents.stopped(2)],
    [incidents.in_call(0), incidents.at_gate(1), incidents.for_nodes(2)],
]


@pytest.mark.parametrize("ranks", FIT)
def test_calls_that_fit_are_not_told(tmp_path, ranks):
    assert not any("do not fit" in cause.sentence for cause in found(tmp_path, node(ranks)))


def test_a_node_whose_file_is_missing_is_named(tmp_path):
    message = "psframe: node 1 (b) cannot be reached"

    def of(number):
        ranks = [incidents.for_nodes(2 * number), incidents.at_gate(2 * number + 1)]
        return node(ranks, message=message, hosts=HOSTS, number=number)

    assert first(tmp_path, of(0), of(2)) == "Node 1 (b) cannot be reached. Nothing was written by b."


def test_the_files_of_one_incident_are_those_of_one_time(tmp_path, capsys):
    """A node may have written one before, of which the others know nothing."""
    early = asked([incidents.at_gate(1, 0.01)], hosts=HOSTS[:2], number=1)
    late = [node([incidents.for_nodes(0)], hosts=HOSTS[:2]), node([incidents.stopped(1)], hosts=HOSTS[:2], number=1)]
    incidents.write(tmp_path, {**early, "time": 1.7e9}, *late)
    assert main([str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "Rank 1 (b) was stopped" in said
    assert "rank 0 (a) waits" in said


def test_a_node_that_another_one_waits_for_tells_its_own_cause(tmp_path):
    here = node([incidents.for_nodes(0)], of=0, message="psframe: node 1 (b) cannot be reached", hosts=HOSTS[:2])
    there = node([incidents.in_layer(1, stacks=MINE)], hosts=HOSTS[:2], number=1)
    assert first(tmp_path, here, there).startswith("Rank 1 (b) does not return from your code at mine.py, line 33")


@RANDOM
@given(st.integers(0, 4), st.integers(0, 4))
def test_the_rank_that_did_not_come_is_named_and_not_the_one_that_waits_for_it(tmp_path_factory, late, waits):
    message = f"psframe: rank {late} did not come to MPI Allreduce for 3 s (sync.deadline_s), where rank {waits} waits"
    if late == waits:
        return
    ranks = [
        incidents.in_call(n, "Bcast" if n == late else "Allreduce", step=14 if n == late else 15) for n in range(5)
    ]
    cause = found(tmp_path_factory.mktemp("run"), node(ranks, of=waits, message=message))[0]
    assert cause.sentence.startswith(f"Rank {late} (a) did not come to the others, in MPI Bcast")


@pytest.mark.parametrize("lost", ["rank 1, 2 did not come to an exchange", "ranks 1, 2 did not end"])
def test_one_of_several_that_did_not_come_is_named(tmp_path, lost):
    reason = "end" if "end" in lost else "deadline"
    ranks = [incidents.in_call(n, step=14 if n else 15) for n in range(3)]
    told = found(tmp_path, node(ranks, reason, 0, f"psframe: {lost} for 3 s, where rank 0 waits"))
    assert told
    assert accused(told[0]) <= {1, 2}


HEALTHY = {
    "all go on": [incidents.in_layer(n, since_s=0.001 * n, n_events_later=410) for n in range(4)],
    "all wait for a moment": [incidents.at_gate(n, 0.01) for n in range(4)],
    "a slow layer": [
        incidents.at_gate(0, 0.7),
        incidents.in_layer(1, 0, since_s=0.8, events=[[flight.FORWARD, 2, 0, 0, 9.0 - n, 1.1] for n in range(4)]),
    ],
    "compiling": [
        rank(0, (flight.PLAN, 0, 0, 9.0), (flight.COMPILE, 0, 0, 8.0)),
        rank(1, (flight.PLAN, 0, 0, 9.0), (flight.SOCKET, 0, 0, 8.0)),
    ],
    "a spare": [incidents.in_layer(0, n_events_later=500), rank(1, (flight.SPARE, 0, 0, 60.0))],
    "a server": [
        incidents.serving(0, 0.9),
        *(incidents.in_layer(n, since_s=0.2, events=incidents.steps(20, 0.1), step=15 + n) for n in (1, 2)),
    ],
    "asynchronous": [
        incidents.in_layer(n, since_s=0.1, step=15 + 9 * n, events=incidents.steps(20, 0.1 + 0.01 * n, first=9 * n))
        for n in range(4)
    ],
    "short steps": [incidents.at_gate(n, 0.01, events=incidents.steps(20, 1e-4 * (1 + n % 2))) for n in (0, 1)],
    "leaders of nodes": [incidents.in_call(n, "Bcast" if n else "Allreduce", since_s=0.1) for n in range(3)],
    "more ranks than cores": [
        incidents.in_layer(n, since_s=0.01, n_events_later=402, share=0.3, delayed=0.15 + 0.01 * n, cpus="0-3")
        for n in range(8)
    ],
    "no ranks": [],
}  # fmt: skip


@pytest.mark.parametrize("name", HEALTHY)
def test_nobody_is_accused_in_health(tmp_path, capsys, name):
    incidents.write(tmp_path, asked(HEALTHY[name], after=changed(MACHINE, cores=4)))
    assert main([str(tmp_path), "--all"]) == 0
    assert capsys.readouterr().out.endswith("\n\nno cause found\n")


def test_many_ranks_on_few_cores_are_told_and_none_of_them_accused(tmp_path):
    ranks = [incidents.at_gate(n, 0.1, n_events_later=402, delayed=0.4 + 0.05 * n, cpus="0-1") for n in range(8)]
    content = asked(ranks, after=changed(MACHINE, cores=2))
    assert not found(tmp_path, content), "it is a choice, while nothing goes wrong"
    cause, *others = found(tmp_path, content | {"reason": "late"})
    assert cause.sentence.startswith("8 ranks share 2 cores")
    assert not others
