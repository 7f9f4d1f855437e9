"""Results in tensors of odd kinds, and works that something else ends or holds up."""

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.torch.harness import ranks

FACTORS = (0.5, torch.tensor([0.5]), torch.tensor([0.5], dtype=torch.float64))
TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int64, torch.complex64)


@ranks(2, 3, own=True)
def factor_of_another_type_gives_the_same_in_every_reduction(team):
    """gloo has no such sums."""
    n = team.size
    for dtype in TYPES:
        for factor in FACTORS:
            op, name = dist._make_nccl_premul_sum(factor), f"{dtype} times {factor}"
            whole, mine, one = (torch.full((4 * k,), 2, dtype=dtype) for k in (n, 1, 1))
            dist.all_reduce(mine, op)
            dist.reduce(one, 0, op)
            scattered, listed = torch.zeros(4, dtype=dtype), torch.zeros(4, dtype=dtype)
            dist.reduce_scatter_tensor(scattered, whole, op)
            dist.reduce_scatter(listed, list(whole.chunk(n)), op)
            for values in (mine, scattered, listed, *([one] if team.rank == 0 else [])):
                team.expect(bool((values == n).all()), f"{name}: {values.tolist()}")


def _expanded():
    return torch.ones(1, 3).expand(4, 3)


def _inference():
    with torch.inference_mode():
        return torch.ones(4, 3).t()


@ranks(2, 3, own=True)
def result_reaches_tensors_that_share_numbers_or_are_of_inference(team):
    """Also where nobody waits for it while it comes, and a thread lets it go on. gloo aborts then."""
    for make in (_expanded, _inference):
        for pause_s in (0, 0.2):
            x = make()
            work = dist.all_reduce(x, async_op=True)
            time.sleep(pause_s)
            work.wait()
            team.expect(bool((x == team.size).all()), f"{make.__name__}, {pause_s} s: {x.tolist()}")


@ranks(2, own=True)
def result_that_cannot_be_written_ends_the_wait(team):
    x = torch.ones(4, 2).t()
    work = dist.all_reduce(x, async_op=True)
    work.last = lambda: x.reshape(3)  # what copies it back fails
    try:
        work.wait()
        team.expect(False, "nothing was raised")
    except RuntimeError as error:
        team.expect("invalid for input of size" in str(error), str(error))
    team.expect(work.is_completed() and not work.is_success(), "it has not ended")
    after = torch.ones(3)
    dist.all_reduce(after)
    team.expect(bool((after == team.size).all()), "the group does not go on")


@ranks(2, own=True)
def work_of_a_group_that_is_destroyed_ends(team):
    """At once, with an error: nobody would let it go on."""
    group = dist.new_group()
    if team.rank == 0:
        work = dist.all_reduce(torch.ones(3), group=group, async_op=True)
        dist.destroy_process_group(group)
        try:
            work.wait()
            team.expect(False, "nothing was raised")
        except dist.DistBackendError as error:
            team.expect("has been destroyed" in str(error), str(error))
    dist.barrier()


@ranks(2)
def backward_waits_for_its_own_exchanges_alone(team):
    """Rank 1 begins the other collective once rank 0 has been through its backward pass."""
    other, x, go = dist.new_group(), torch.ones(3), torch.zeros(1)
    model = DDP(torch.nn.Linear(4, 4))
    if team.rank == 0:
        work = dist.all_reduce(x, group=other, async_op=True)
        model(torch.ones(1, 4)).sum().backward()
        dist.send(go, 1)
        work.wait()
    else:
        model(torch.ones(1, 4)).sum().backward()
        dist.recv(go, 0)
        dist.all_reduce(x, group=other)
    team.expect(bool((x == 2).all()), f"{x.tolist()}")
    dist.barrier()


@ranks(2, 3, own=True)
def future_of_several_comes_though_nobody_waits(team):
    group, a, b = dist.group.WORLD, torch.ones(4), torch.ones(5)
    group._start_coalescing(torch.device("cpu"))
    group.allreduce([a])
    group.allreduce([b])
    future, called = group._end_coalescing(torch.device("cpu")).get_future(), []
    after = future.then(lambda _: called.append(1))
    torch.futures.wait_all([after])
    team.expect(called == [1], "what follows was not called")
    team.expect(bool((a == team.size).all() and (b == team.size).all()), f"{a.tolist()}, {b.tolist()}")
