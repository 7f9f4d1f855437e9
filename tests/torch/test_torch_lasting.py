"""Groups of the backend "psframe" that come and go, of many ranks, beside forked processes, and that are left open."""

import json

import pytest

from tests.torch.started import errors, job

pytest.importorskip("torch", reason="PyTorch, whose backend this is, is not installed: pip install -e .[torch]")

MIB = 1 << 20


def ended_well(told):
    """Assert that the ranks of a job ended well, and quietly; return what they told."""
    (told,) = told
    assert not told["late"], told["err"]
    assert told["statuses"] == [0] * told["job"]["n"], told["err"]
    assert not any(errors(err) for err in told["err"]), told["err"]
    assert (told["processes"], told["shm"]) == ([], [])
    return [json.loads(out) for out in told["out"] if out]


@pytest.mark.full
@pytest.mark.parametrize(
    "jobs",
    [
        [job(3, "lasting.renewed", 50)],
        [job(3, "lasting.groups_renewed", 20)],
        [job(2, "lasting.renewed", 1000, late_s=1000)],
        [job(2, "lasting.groups_renewed", 1000, late_s=1000)],
    ],
    ids=["worlds", "groups", "worlds-1000", "groups-1000"],
)
def test_groups_that_are_gone_leave_nothing(told):
    """No descriptor, thread or mapping; of other memory, the allocator may keep a piece more."""
    for rank in ended_well(told):
        before, after = rank["held"]
        assert after["descriptors"] <= before["descriptors"]
        assert after["threads"] <= before["threads"]
        assert after["shared mappings"] <= before["shared mappings"]
        assert after["mappings"] <= before["mappings"] + 5


@pytest.mark.parametrize("jobs", [[job(2, "lasting.forgotten")]])
def test_group_is_gone_when_it_is_destroyed(told):
    assert [(rank["same"], rank["gone"]) for rank in ended_well(told)] == [(True, True)] * 2


@pytest.mark.parametrize("jobs", [[job(2, "lasting.workers")]])
def test_forked_workers_do_no_harm(told):
    assert [rank["same"] for rank in ended_well(told)] == [True, True]


@pytest.mark.parametrize("jobs", [[job(3, "lasting.open_at_exit", pending)] for pending in (False, True)])
def test_groups_that_are_left_open_end_quietly(told):
    ended_well(told)
    assert told[0]["err"] == [""] * 3


@pytest.mark.parametrize(
    "jobs",
    [
        [job(16, "lasting.many", late_s=300)],
        pytest.param([job(64, "lasting.many", late_s=900)], marks=pytest.mark.full),
    ],
    ids=["16", "64"],
)
def test_many_ranks_on_few_cores_train_in_bounded_memory(told):
    """Two groups each, of at most 32 MiB and a little for each rank, which all ranks of a group share."""
    ranks = ended_well(told)
    assert len(ranks) == told[0]["job"]["n"]
    assert all(rank["same"] for rank in ranks)
    for rank in ranks:
        assert len(rank["shared"]) == 2
        assert sum(each["size"] for each in rank["shared"]) < 2 * 40 * MIB
    assert sum(each["pss"] for rank in ranks for each in rank["shared"]) < 3 * 40 * MIB
