"""Works and futures: orders of waiting, what they are asked, threads with a group each, averages."""

import threading
from itertools import product

import torch
import torch.distributed as dist

from tests.torch.call import by_polling, check, drawn, run
from tests.torch.expected import Op, differs, fold
from tests.torch.harness import ranks
from tests.torch.moves import MOVES
from tests.torch.reductions import REDUCTIONS, all_reduce
from tests.torch.tensors import FLOATS, numbers, place


@ranks(2, 3, 5, 4)
def waits_for_two_groups_may_cross(team):
    """Even ranks wait for the first group and then for the second one, odd ranks the other way round."""
    for draw in team.examples(12):
        calls = [drawn(draw, group, all_reduce) for group in team.groups[:2]]
        works = [call.begin(async_op=True) for call in calls]
        for work in works if team.rank % 2 else reversed(works):
            work.wait()
        for call in calls:
            check(team, call)


@ranks(2, 3, 5, 4)
def begins_in_two_groups_may_cross(team):
    """Even ranks begin with the first group, odd ones with the second, and wait in either order."""
    for draw in team.examples(12):
        calls = [drawn(draw, group, *REDUCTIONS, *MOVES) for group in team.groups[:2]]
        begins, waits = list(range(2)), list(range(2))
        if team.rank % 2:
            begins.reverse()
        if draw.rng.random() < 0.5:
            waits = begins[::-1]
        works = {at: calls[at].begin(async_op=True) for at in begins}
        for at in waits:
            works[at].wait()
        for call in calls:
            check(team, call)


@ranks(2, 3, 5)
def waits_for_overlapping_groups_may_cross(team):
    """Of several groups and calls each rank waits in an order of its own."""
    for draw in team.examples(10):
        calls = [drawn(draw, draw.rng.choice(team.groups), *REDUCTIONS, *MOVES) for _ in range(10)]
        run(team, draw, calls)


@ranks(1, 2, 3, 5)
def future_has_the_tensors(team):
    for draw in team.examples(8, team.groups[:1]):
        call = drawn(draw, team.groups[0], all_reduce)
        work = call.begin(async_op=True)
        value = work.get_future().wait()
        wrong = differs(value[0] if isinstance(value, list) else value, _flat(call.results[0].placed.view))
        team.expect(wrong is None, f"{call.text}: the future's value: {wrong}")
        is_done = work.get_future().done() and (work.is_completed() or not team.is_own)  # gloo tells the future first
        team.expect(is_done, f"{call.text}: not done after its future")
        check(team, call)


def _flat(tensor):
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


@ranks(1, 2, 3, 5)
def futures_may_be_collected(team):
    for draw in team.examples(8, team.groups[:2]):
        calls = [drawn(draw, draw.rng.choice(team.groups[:2]), all_reduce) for _ in range(5)]
        works = [call.begin(async_op=True) for call in calls]
        futures = [work.get_future().then(lambda f, at=at: at) for at, work in enumerate(works)]
        found = torch.futures.collect_all(futures).wait()
        team.expect([each.value() for each in found] == [0, 1, 2, 3, 4], f"collect_all gave {found}")
        team.expect(torch.futures.wait_all(futures) == [0, 1, 2, 3, 4], "wait_all gave others")
        for call in calls:
            check(team, call)


@ranks(1, 2, 3, 5)
def work_may_be_asked_again(team):
    """Waiting twice is the same as once, and a work that nobody waits for is done all the same."""
    for draw in team.examples(8, team.groups[:1]):
        first, second = drawn(draw, team.groups[0], all_reduce), drawn(draw, team.groups[0], all_reduce)
        work = first.begin(async_op=True)
        second.begin(async_op=True)  # its work is dropped
        for _ in range(2):
            team.expect(work.wait() in (True, None), f"{first.text}: wait() gave something else than True")
        by_polling(team, first, work)
        check(team, first)
        dist.barrier()
        total = torch.ones(3)
        dist.all_reduce(total)  # behind it in the order of the group
        check(team, second)


@ranks(1, 2, 3, 5, 4)
def small_one_behind_a_large_one_is_done_when_waited_for(team):
    """Collectives of many sizes and kinds, of which the last are waited for first: then they are done."""
    for draw in team.examples(12, team.groups[:1]):
        sizes = draw.rng.sample([3, 100, 5_000, 40_000, 300_000], 5)
        rows = [[numbers(f"{draw.key} {r} {size}", (size, 1), torch.float32) for size in sizes] for r in range(draw.n)]
        mine = [place(row, draw.rng.choice(["plain", "every second"])) for row in rows[team.rank]]
        works = [dist.all_reduce(one.view, async_op=True) for one in mine]
        for at in draw.rng.sample(range(5), 5) if team.size % 2 else reversed(range(5)):
            if draw.rng.random() < 0.5:
                works[at].wait()
            else:
                works[at].get_future().wait()
            is_done = works[at].is_completed() or not team.is_own  # gloo tells the future first
            team.expect(is_done, f"{sizes}: number {at} is not done after its wait")
            want = fold(Op.SUM, [row[at] for row in rows])
            wrong = differs(mine[at].view, want) if team.is_own else None
            team.expect(wrong is None, f"{sizes}: number {at}: {wrong}")


@ranks(2, 3, 5)
def threads_have_a_group_each(team):
    for draw in team.examples(4):
        calls = {group.name: [drawn(draw, group, all_reduce) for _ in range(10)] for group in team.groups[:2]}
        raised = []

        def go(mine, raised=raised):
            try:
                for call in mine:
                    call.begin(async_op=False)
            except BaseException as error:
                raised.append(error)

        threads = [threading.Thread(target=go, args=(mine,)) for mine in calls.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if raised:
            raise raised[0]
        for mine in calls.values():
            for call in mine:
                check(team, call)


@ranks(2, 3, 5, own=True)
def average_of_own_type_is_a_division(team):
    """Not a product with one over n, nor a sum of quotients: other bits, for three ranks in every third number."""
    for draw in team.examples(3, team.groups[:1]):
        for dtype, length in product(FLOATS, (999, 50_000)):  # each rank sums all, and a part
            rows = [torch.linspace(0.1, 9.7, length).to(dtype) * (r + 1) for r in range(team.size)]
            mine = rows[team.rank].clone()
            dist.all_reduce(mine, Op.AVG)
            want = rows[0]
            for row in rows[1:]:
                want = want + row
            wrong = differs(mine, want / team.size)
            team.expect(wrong is None, f"{dtype} {draw.key}: {wrong}")
