"""Causes that make ranks slow, in incidents: the right rank, host and layer, and nobody without need."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from psframe.doctor.why.causes import causes
from psframe.doctor.why.evidence import Evidence
from psframe.record import flight
from tests.helpers import incidents
from tests.helpers.incidents import MACHINE, asked, at_gate, changed, node, rank, steps

RANDOM = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
HOSTS = ["a", "b"]


def found(folder, *nodes):
    return causes(Evidence(incidents.write(folder, *nodes)))


def going(number, **more):
    """A rank that makes progress."""
    return at_gate(number, 0.01, n_events_later=410, **more)


def test_a_cgroup_without_time_is_told_with_its_host(tmp_path):
    used = changed(MACHINE, cgroup__groups__job__throttled=40, cgroup__groups__job__throttled_us=9_000_000)
    cause = found(tmp_path, asked([going(0)], hosts=HOSTS), asked([going(1)], hosts=HOSTS, number=1, after=used))[0]
    assert cause.sentence == "The cgroup of the job on b had no CPU time left for 5.0 s of 10.5 s."
    assert "36 times" in cause.evidence[0]


def test_the_seconds_that_a_cgroup_held_up_all_cores_are_told_as_those_of_one(tmp_path):
    used = changed(MACHINE, cgroup__groups__job__throttled=40, cgroup__groups__job__throttled_us=44_000_000)
    cause = found(tmp_path, asked([going(number) for number in range(16)], after=used))[0]
    assert cause.sentence == "The cgroup of the job on a had no CPU time left for 2.5 s of 10.5 s."
    little = changed(MACHINE, cgroup__groups__job__throttled=40, cgroup__groups__job__throttled_us=20_000_000)
    (tmp_path / "2").mkdir()
    assert not found(tmp_path / "2", asked([going(number) for number in range(16)], after=little))


def test_a_rank_that_shares_its_core_is_named_with_the_other_one(tmp_path):
    ranks = [going(0, cpus="0"), going(1, cpus="1"), going(2, cpus="2", delayed=0.5, core=2), going(3, cpus="2")]
    cause, *others = found(tmp_path, asked(ranks))
    assert cause.sentence.startswith("Rank 2 (a) shares core 2 with rank 3: it could run and had no core for 50% of")
    assert not others


def test_a_core_of_the_same_number_on_another_host_is_not_shared(tmp_path):
    here = asked([going(0, cpus="0", delayed=0.5, core=0), going(1, cpus="1")], hosts=HOSTS)
    there = asked([going(2, cpus="0"), going(3, cpus="1")], hosts=HOSTS, number=1)
    cause = found(tmp_path, here, there)[0]
    assert cause.sentence.startswith("Rank 0 (a) shares core 0 with another process")


@RANDOM
@given(st.lists(st.floats(0.2, 0.75), min_size=2, max_size=9))
def test_ranks_that_all_lack_cores_are_not_accused_one_by_one(tmp_path_factory, shares):
    ranks = [going(number, delayed=share) for number, share in enumerate(shares)]
    told = found(tmp_path_factory.mktemp("run"), asked(ranks))
    assert not any(cause.sentence.startswith("Rank ") for cause in told)


def test_ranks_are_counted_against_the_cores_of_their_own_host(tmp_path):
    """Not against those of the largest host."""
    few, many = changed(MACHINE, cores=2), changed(MACHINE, cores=64)
    here = asked([going(n, delayed=0.6) for n in range(2)], hosts=HOSTS, before=many)
    there = asked([going(n, delayed=0.6) for n in range(2, 8)], hosts=HOSTS, number=1, before=few)
    late = [content | {"reason": "late"} for content in (here, there)]
    sentences = [cause.sentence for cause in found(tmp_path, *late)]
    assert [sentence[:21] for sentence in sentences] == ["6 ranks share 2 cores"]


@pytest.mark.parametrize("short", [{"pressure__memory__full": 4e9 + 5e6}, {"swapped__pswpin": 9000}])
def test_a_host_short_of_memory_is_told(tmp_path, short):
    cause = found(tmp_path, asked([going(0)], after=changed(MACHINE, **short)))[0]
    assert cause.sentence.startswith("Host a is short of memory")


def test_a_job_short_of_memory_is_told_apart_from_its_host(tmp_path):
    before = changed(MACHINE, cgroup__groups__job__reached=1, cgroup__memory_us=0)
    after = changed(MACHINE, cgroup__groups__job__reached=9, cgroup__memory_us=5_000_000)
    cause = found(tmp_path, asked([going(0)], before=before, after=after))[0]
    assert cause.sentence.startswith("The cgroup of the job on a is short of memory: its tasks waited for it for 5.0 s")
    assert "reached its limit of memory 8 times" in cause.evidence[1]
    assert cause.advice.startswith("Give the job more memory")


@pytest.mark.parametrize(
    ("cores", "n", "told"), [("3", 2, True), ("3,5-6", 4, True), ("3-4", 2, False), ("x", 2, False)]
)
def test_ranks_on_fewer_cores_than_they_are_are_named(tmp_path, cores, n, told):
    ranks = [going(number, cpus=cores, delayed=0.5) for number in range(n)]
    ranks += [going(n + number, cpus="0-63", delayed=0.5) for number in range(2)]
    sentences = [cause.sentence for cause in found(tmp_path, asked(ranks))]
    numbers = ", ".join(map(str, range(n)))
    words = f"core{'s' * (cores != '3')} {cores} alone, of 64"
    assert [sentence for sentence in sentences if "alone" in sentence] == [
        f"Ranks {numbers} (a) may run on {words}: the median one could run and had no core for 50% of the time."
    ] * told


def test_ranks_on_all_cores_of_a_small_host_are_not_named(tmp_path):
    two = changed(MACHINE, cores=2)
    ranks = [going(number, cpus=str(number % 2), delayed=0.5) for number in range(4)]
    assert not found(tmp_path, asked(ranks, before=two))


def test_cores_that_ranks_had_before_are_told(tmp_path):
    content = asked([going(number, cpus="0", delayed=0.5) for number in range(2)])
    for process in content["samples"][0]["processes"].values():
        process["status"] = {"Cpus_allowed_list": "0-7"}
    (cause,) = found(tmp_path, content)
    assert cause.evidence == ["when the job began, they might run on 0-7"]


def test_a_slow_disk_is_told_of_the_host_that_writes(tmp_path):
    slow = changed(MACHINE, pressure__io__some=5e9 + 5e6)
    writes = rank(0, (flight.STORE, 0, 0, 0.1), n_events_later=401)
    cause = found(tmp_path, asked([writes, going(1)], after=slow))[0]
    assert cause.sentence.startswith("The disk of host a is slow")
    assert "rank 0 (a) writes there" in cause.sentence
    for name, writes_s in (("3", 9.0), ("4", 0.1)):
        (tmp_path / name).mkdir()
        beside = found(tmp_path / name, asked([going(0, writes_s=writes_s)], after=slow))
        assert ["rank 0 (a) writes there" in cause.sentence for cause in beside] == [True] * (writes_s > 5)
    silent = asked([writes], hosts=HOSTS), asked([going(1)], hosts=HOSTS, number=1, after=slow)
    (tmp_path / "2").mkdir()
    assert not found(tmp_path / "2", *silent)


@RANDOM
@given(st.integers(2, 6), st.data(), st.booleans())
def test_a_slow_rank_is_named_with_its_layer(tmp_path_factory, n, data, in_one):
    slow = data.draw(st.integers(0, n - 1))
    layers = (0.01, 0.05, 0.01) if in_one else (0.02, 0.02, 0.02)
    ranks = [going(number, events=steps(20, 0.03, (0.01, 0.01, 0.01))) for number in range(n)]
    ranks[slow] = going(slow, events=steps(20, 0.07, layers))
    (cause,) = found(tmp_path_factory.mktemp("run"), asked(ranks))
    assert cause.sentence == (
        f"Rank {slow} (a) is slower than the others: 70.0 ms for the median step, where the others take 30.0 ms"
        f"{', most of it in layer 1 Mine' if in_one else ''}."
    )


ALIKE = {  # events of two ranks, neither of which is slow
    "a little slower": (steps(20, 0.030), steps(20, 0.036)),
    "too few steps": (steps(20, 0.03), steps(5, 0.09)),
    "a few slow steps": (steps(20, 0.03), steps(16, 0.03) + steps(4, 0.9, first=17)),
    "short steps": (steps(20, 0.0001), steps(20, 0.0003)),
    "a server": ([event for event in steps(20, 0.9) if event[0] != flight.FORWARD], steps(20, 0.03)),
    "no steps": ([], []),
}


@pytest.mark.parametrize("name", ALIKE)
def test_ranks_that_are_alike_are_not_slow(tmp_path, name):
    ranks = [going(number, events=events) for number, events in enumerate(ALIKE[name])]
    assert not found(tmp_path, asked(ranks))


def test_a_slow_rank_is_not_told_beside_one_that_hangs(tmp_path, capsys):
    from psframe.doctor.why.__main__ import main

    hung = incidents.locked(1, stacks=incidents.MINE, events=steps(20, 0.03))
    incidents.write(tmp_path, node([at_gate(0, events=steps(20, 0.05)), hung], of=0))
    assert main([str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "1. Rank 1 (a) waits in your code at mine.py, line 33 (spin)" in said
    assert "Rank 0 (a) is slower" not in said


@RANDOM
@given(st.floats(0, 0.19), st.floats(0, 0.19), st.integers(0, 2000), st.floats(0, 0.2))
def test_little_of_everything_accuses_nobody(tmp_path_factory, memory, disk, swapped, delayed):
    end = changed(
        MACHINE,
        pressure__memory__full=4e9 + memory * 10.5e6,
        pressure__io__some=5e9 + disk * 10.5e6,
        swapped__pswpin=7 + swapped,
        cgroup__groups__job__throttled=5,
        cgroup__groups__job__throttled_us=4_000_000 + disk * 10.5e6,
    )
    ranks = [going(0, delayed=delayed), rank(1, (flight.STORE, 0, 0, 0.1), n_events_later=401)]
    assert not found(tmp_path_factory.mktemp("run"), asked(ranks, after=end))
