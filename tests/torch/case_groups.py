"""Groups: subsets, many at once, in any order, made and closed again, and what is refused of them."""

import json
import os
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist

from tests.torch.expected import differs
from tests.torch.harness import ranks


def _sum_is_right(team, group, members, what):
    total = torch.full((7,), float(team.rank + 1))
    dist.all_reduce(total, group=group)
    want = float(sum(rank + 1 for rank in members))
    team.expect(bool((total == want).all()), f"{what}: sum over {members} is {total.tolist()} in place of {want}")


@ranks(2, 3, 5, 4, 7, 8)
def subsets_are_groups(team):
    """Random subsets, named in any order: a member's number is its place among the sorted."""
    for draw in team.examples(6):
        members = draw.rng.sample(range(team.size), draw.rng.randint(1, team.size))
        group = dist.new_group(members)
        members = sorted(members)
        if team.rank in members:
            team.expect(dist.get_process_group_ranks(group) == members, f"{dist.get_process_group_ranks(group)}")
            team.expect(dist.get_rank(group) == members.index(team.rank), f"rank {dist.get_rank(group)} of {members}")
            team.expect(dist.get_world_size(group) == len(members), f"size {dist.get_world_size(group)}")
            team.expect(dist.get_backend(group) == team.backend, f"backend {dist.get_backend(group)}")
            _sum_is_right(team, group, members, "subset")
            dist.destroy_process_group(group)
        else:
            team.expect(group == dist.GroupMember.NON_GROUP_MEMBER, f"{group} is given to one that is no member")
            team.expect(dist.get_rank(group) == -1, f"rank {dist.get_rank(group)} of one that is no member")


@ranks(2, 3, 5)
def members_make_a_group_alone(team):
    """With local synchronization the others do not call.

    PyTorch calls such a group after its members and the number of groups that a rank is in, which must be the same.
    """
    counts = [sum(rank in group.ranks for group in team.groups) for rank in range(team.size)]
    members = [rank for rank, count in enumerate(counts) if count == counts[-1]]
    if team.rank in members:
        group = dist.new_group(members, use_local_synchronization=True)
        _sum_is_right(team, group, members, "made by its members")
        dist.destroy_process_group(group)


@ranks(2, 3, 5)
def many_groups_live_at_once(team):
    """All of the same members, used in two orders; what they take is given back."""
    for _ in range(2):
        groups = [dist.new_group() for _ in range(12)]
        for group in [*groups, *reversed(groups)]:
            _sum_is_right(team, group, range(team.size), "one of many")
        works = []
        for group in groups:
            tensor = torch.full((1000,), float(team.rank))
            works.append((tensor, dist.all_reduce(tensor, group=group, async_op=True)))
        for tensor, work in reversed(works):
            work.wait()
            team.expect(bool((tensor == sum(range(team.size))).all()), f"of many at once: {tensor[:3]}")
        for group in groups:
            dist.destroy_process_group(group)
    _sum_is_right(team, None, range(team.size), "the world behind them")


@ranks(4, 5)
def subgroups_are_by_enumeration(team):
    group, _ = dist.new_subgroups_by_enumeration([[0, 1], [2, 3]])
    if team.rank < 4:
        members = [0, 1] if team.rank < 2 else [2, 3]
        _sum_is_right(team, group, members, "subgroup")
        dist.destroy_process_group(group)


@ranks(1, 2, 3, 5)
def group_says_what_it_is(team):
    group = dist.new_group(timeout=timedelta(seconds=77), group_desc="of the test")
    team.expect(group.size() == team.size and group.rank() == team.rank, f"{group.rank()} of {group.size()}")
    team.expect(group.group_desc == "of the test", f"described as {group.group_desc!r}")
    team.expect(bool(group.group_name), "has no name")
    team.expect(dist.get_backend() == team.backend, f"backend {dist.get_backend()}")
    dist.barrier(group)
    dist.destroy_process_group(group)


@ranks(1, 2, 3, 5, own=True)
def timeout_of_a_group_is_taken_whole(team):
    """With its days and its fraction of a second, as it is made and as it is set later."""
    given, seconds = timedelta(days=1, seconds=2, milliseconds=250), 24 * 3600 + 2.25
    group = dist.new_group(timeout=given)
    team.expect(group.timeout_s == seconds, f"made with a time-out of {group.timeout_s} s in place of {seconds}")
    for set_to in (group.set_timeout, group._set_default_timeout):
        for timeout, want in ((timedelta(milliseconds=500), 0.5), (given, seconds)):
            set_to(timeout)
            team.expect(group.timeout_s == want, f"{set_to.__name__}: {group.timeout_s} s in place of {want}")
    dist.barrier(group)
    dist.destroy_process_group(group)


@ranks(2, 3, 5, own=True)
def timeout_is_that_of_the_call_or_of_the_group(team):
    """A wait alone ends after it, however it was given, and says how long it was."""
    short = timedelta(milliseconds=125)
    waits = {
        "set": lambda group: (group.set_timeout(short), dist.all_reduce(torch.ones(3), group=group)),
        "of the wait": lambda group: dist.all_reduce(torch.ones(3), group=group, async_op=True).wait(short),
        "of the barrier": lambda group: group.monitored_barrier(short),
    }
    for name, wait in waits.items():
        group = dist.new_group(timeout=timedelta(days=1))
        if team.rank == 0:
            try:
                wait(group)
            except dist.DistBackendError as error:
                team.expect("within the timeout of 0.125 s" in str(error), f"{name}: {error}")
            else:
                team.tell(f"{name}: ended without the others")
        dist.barrier()


@ranks(2, 3, 5)
def groups_number_their_members(team):
    """``src`` and ``dst`` are ranks of the world, ``group_src`` and ``group_dst`` those of the group."""
    members = list(range(team.size))[1:]
    group = dist.new_group(members)
    if team.rank in members:
        for root in range(len(members)):
            one, two = torch.full((4,), float(team.rank)), torch.full((4,), float(team.rank))
            dist.broadcast(one, src=members[root], group=group)
            dist.broadcast(two, group_src=root, group=group)
            wrong = differs(one, torch.full((4,), float(members[root]))) or differs(two, one)
            team.expect(wrong is None, f"broadcast of {root} in {members}: {wrong}")
        dist.destroy_process_group(group)


@ranks(2, 3, 5, own=True)
def group_records_its_collectives(team):
    """By kind and type, in a file of each rank, which is there once the group is destroyed."""
    with TemporaryDirectory(prefix="psframe-test-") as folder:
        os.environ["PSFRAME_TORCH_RECORD"] = folder
        group = dist.new_group()
        del os.environ["PSFRAME_TORCH_RECORD"]
        for dtype in (torch.float32, torch.int64, torch.float32):
            dist.all_reduce(torch.ones(6, dtype=dtype), group=group)
        dist.barrier(group)
        dist.destroy_process_group(group)
        (path,) = Path(folder).iterdir()
        found = json.loads(path.read_text())
    rows = [[row[key] for key in ("collective", "dtype", "calls", "bytes")] for row in found["collectives"]]
    want = [["all_reduce", "float32", 2, 48], ["all_reduce", "int64", 1, 48], ["barrier", "", 1, 0]]
    team.expect(rows == want, f"rows {rows} in place of {want}")
    waits = [(row["longest_wait_s"], row["waited_s"]) for row in found["collectives"]]
    team.expect(all(0 <= longest <= waited for longest, waited in waits), f"waits {waits}")
    team.expect((found["rank"], found["ranks"]) == (team.rank, [*range(team.size)]), f"of {found}")
    team.expect(sum(found["pages"].values()) > 0, f"pages {found['pages']}")
