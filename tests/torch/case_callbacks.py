"""Callbacks of futures: their values, and the places at which they are called, as they may begin other collectives."""

import threading
import time

import torch
import torch.distributed as dist

from psframe.torch.progress import IDLE_S
from tests.torch.call import check, drawn
from tests.torch.harness import ranks
from tests.torch.reductions import all_reduce


@ranks(1, 2, 3, 5)
def callbacks_follow_each_other(team):
    """What ``then`` returns has the last callback's value, also where it was asked for before the collective's end."""
    for draw in team.examples(8, team.groups[:1]):
        calls = [drawn(draw, team.groups[0], all_reduce) for _ in range(4)]
        works = [call.begin(async_op=True) for call in calls]
        said = []
        futures = [
            work.get_future().then(lambda f, at=at, said=said: said.append(at) or at).then(lambda f: 10 * f.value())
            for at, work in enumerate(works)
        ]
        for at in reversed(range(4)):
            team.expect(futures[at].wait() == 10 * at, f"callback {at} gave {futures[at].value()}")
        team.expect(sorted(said) == [0, 1, 2, 3], f"callbacks ran: {said}")
        for call in calls:
            check(team, call)


@ranks(1, 2, 3, 5, own=True)
def callback_may_begin_another(team):
    """As a communication hook does: a collective in the callback of another, whose future is waited for there."""
    for draw in team.examples(8):
        first, second = drawn(draw, team.groups[0], all_reduce), drawn(draw, team.groups[0], all_reduce)

        def again(future, call=second):
            call.begin(async_op=True).get_future().wait()
            return len(future.value())

        team.expect(first.begin(async_op=True).get_future().then(again).wait() >= 1, f"{first.text}: no value")
        check(team, first)
        check(team, second)


@ranks(1, 2, 3, 5, own=True)
def callbacks_of_many_may_begin_others(team):
    """As of buckets one behind the other, waited for in their order."""
    for draw in team.examples(5):
        first = [drawn(draw, team.groups[0], all_reduce) for _ in range(4)]
        second = [drawn(draw, team.groups[0], all_reduce) for _ in range(4)]
        works = [call.begin(async_op=True) for call in first]
        for work, call in zip(works, second, strict=True):
            work.get_future().then(lambda _, call=call: call.begin(async_op=True).get_future().wait()).wait()
        for call in (*first, *second):
            check(team, call)


@ranks(2, 5, own=True)
def callbacks_of_a_backward_pass_begin_others_in_one_order(team):
    """Behind all that the pass itself begins, also where a rank needs long from one layer to the next."""
    for slow, draw in enumerate(team.examples(4, team.groups[:1])):
        first = [drawn(draw, team.groups[0], all_reduce) for _ in range(3)]
        second = [drawn(draw, team.groups[0], all_reduce) for _ in range(3)]
        futures = []

        def again(call):
            return lambda _: call.begin(async_op=True).get_future().wait()

        def hook(at, late, first=first, second=second, futures=futures):
            futures.append(first[at].begin(async_op=True).get_future().then(again(second[at])))
            if late and at < 2:
                time.sleep(5 * IDLE_S)

        x = torch.ones(2, requires_grad=True)
        for at in reversed(range(3)):
            x = x * 2
            x.register_hook(lambda _, at=at, hook=hook, late=slow % team.size == team.rank: hook(at, late))
        x.sum().backward()
        team.expect(all(future.done() for future in futures), "a callback was not called at the end of the pass")
        for call in (*first, *second):
            check(team, call)


@ranks(2, 5, own=True)
def pass_may_wait_in_ways_of_pytorch(team):
    """For futures that PyTorch has collected, in the middle of a backward pass: nobody waits for ever."""
    for draw in team.examples(2, team.groups[:1]):
        calls = [drawn(draw, team.groups[0], all_reduce) for _ in range(3)]

        def hook(_, calls=calls):
            works = [call.begin(async_op=True) for call in calls]
            futures = [work.get_future().then(lambda _: 1) for work in works]
            torch.futures.wait_all(futures[:2])
            torch.futures.collect_all(futures).wait()  # in C++

        x = torch.ones(2, requires_grad=True)
        y = x * 2
        y.register_hook(hook)
        y.sum().backward()
        for call in calls:
            check(team, call)


@ranks(2, 5, own=True)
def pass_of_a_thread_lets_others_go_on(team):
    """A thread in a backward pass waits for one that is in none, and that waits in C++."""
    for draw in team.examples(2, team.groups[:1]):
        call = drawn(draw, team.groups[0], all_reduce)
        mine, found = drawn(draw, team.groups[0], all_reduce), []

        def wait(call=call, found=found):
            work = call.begin(async_op=True)
            found.append(torch.futures.collect_all([work.get_future().then(lambda _: 1)]).wait())

        def hook(_, mine=mine, wait=wait):
            work = mine.begin(async_op=True)
            work.get_future().then(lambda _: 1)
            thread = threading.Thread(target=wait)
            thread.start()
            thread.join()

        x = torch.ones(2, requires_grad=True)
        y = x * 2
        y.register_hook(hook)
        y.sum().backward()
        team.expect(len(found) == 1, "the thread has not come to its end")
        check(team, call)
        check(team, mine)


@ranks(2, 5, own=True)
def pass_that_fails_keeps_nobody_waiting(team):
    """The callbacks of what it had begun are called later on."""
    for draw in team.examples(3, team.groups[:1]):
        call, called = drawn(draw, team.groups[0], all_reduce), []

        def hook(_, call=call, called=called):
            call.begin(async_op=True).get_future().then(lambda _: called.append(1))
            raise ValueError("no gradient")

        x = torch.ones(2, requires_grad=True)
        y = x * 2
        y.register_hook(hook)
        try:
            y.sum().backward()
        except ValueError:
            dist.barrier()
        until = time.monotonic() + 20
        while not called and time.monotonic() < until:
            time.sleep(0.005)
        team.expect(called == [1], "the callback was not called")
        check(team, call)
