"""Barriers: nobody leaves before all have come."""

import time
from datetime import timedelta

import torch.distributed as dist

from tests.torch.harness import ranks

LATE_S = 0.03


def _come(draw, team, barrier):
    """Let one come late, and look whether it had come when the others leave."""
    store = dist.distributed_c10d._get_default_store()
    late = draw.rng.randrange(draw.n)
    key = f"{draw.key} has come"
    if draw.me == late:
        time.sleep(LATE_S)
        store.set(key, "yes")
    if draw.me is not None:
        barrier()
        team.expect(store.check([key]), f"left the barrier of {draw.group.ranks} before {late} had come")


@ranks(1, 2, 3, 5, 4)
def barrier_waits_for_the_last(team):
    for draw in team.examples(4):
        _come(draw, team, lambda draw=draw: dist.barrier(draw.group.handle))
        _come(draw, team, lambda draw=draw: dist.barrier(draw.group.handle, async_op=True).wait())
        _come(draw, team, lambda draw=draw: dist.barrier(draw.group.handle, timeout=timedelta(seconds=60)))


@ranks(1, 2, 3, 5)
def monitored_barrier_waits_for_the_last(team):
    for draw in team.examples(4):
        group = draw.group.handle or dist.group.WORLD
        for all_ranks in (False, True):
            _come(
                draw,
                team,
                lambda group=group, all_ranks=all_ranks: group.monitored_barrier(
                    timedelta(seconds=60), wait_all_ranks=all_ranks
                ),
            )


@ranks(2, 3, 5)
def monitored_barrier_names_who_is_missing(team):
    """The first rank says so, of one or of all; the group is of no more use then."""
    for _ in team.examples(1, team.groups[:1]):
        group = dist.new_group()
        if team.rank == 0:
            try:
                group.monitored_barrier(timedelta(seconds=1), wait_all_ranks=True)
            except RuntimeError as error:
                team.expect(str(team.size - 1) in str(error), f"does not name the last rank: {error}")
            else:
                team.tell("a barrier ended without the others")
        dist.barrier()
