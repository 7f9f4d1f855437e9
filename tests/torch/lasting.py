"""What ranks do for long, often, or in large numbers: functions of every rank of a job (``tests/torch/forked.py``)."""

import gc
import multiprocessing
import os
import time
import weakref
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

from tests.torch.faults import SIZE, begin, tell


def _held() -> dict[str, int]:
    """Return what this process has of the system."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text().splitlines()
    shared = sum(line.split()[1].endswith("s") for line in maps)
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "shared mappings": shared,
        "mappings": len(maps),
    }


def renewed(times: int) -> None:
    """Groups are made and destroyed, again and again, in one process."""
    rank, n = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), n, rank == 0)
    held = []
    for turn in range(5 + times):
        if turn == 5:
            held.append(_held())
        begin(store=dist.PrefixStore(str(turn), store), rank=rank, world_size=n)
        pair = dist.new_group([0, 1])
        x = torch.ones(SIZE)
        dist.all_reduce(x)
        if rank < 2:
            dist.all_reduce(x, group=pair)
            work = dist.all_reduce(x, group=pair, async_op=True)  # nobody waits for it
            model = DDP(torch.nn.Linear(50, 50), process_group=pair)
            model(torch.ones(1, 50)).sum().backward()
            work.wait()
            del model, work
        expected = float(n if rank >= 2 else n * 2 * 2)
        assert x.eq(expected).all(), (turn, x[:3], expected)
        dist.barrier()
        dist.destroy_process_group()
        del pair
    held.append(_held())
    tell(held=held)
    store.set(f"done/{rank}", "")
    if rank == 0:  # whose store it is
        store.wait([f"done/{each}" for each in range(n)])


def groups_renewed(times: int) -> None:
    """One world, in which groups come and go."""
    begin()
    held = []
    for turn in range(5 + times):
        if turn == 5:
            held.append(_held())
        group = dist.new_group()
        x = torch.ones(SIZE)
        dist.all_reduce(x, group=group)
        dist.barrier(group)
        dist.destroy_process_group(group)
        del group
    held.append(_held())
    tell(held=held)
    dist.destroy_process_group()


def forgotten() -> None:
    """What went on by itself in a group is over, and the group is destroyed."""
    _, n = begin(20)
    group = dist.new_group()
    held = weakref.ref(group._get_backend(torch.device("cpu")))
    x = torch.ones(SIZE)
    work = dist.all_reduce(x, group=group, async_op=True)
    until = time.monotonic() + 20
    while not x.eq(n).all() and time.monotonic() < until:  # by the thread that lets works go on, as nobody waits
        time.sleep(0.01)
    dist.barrier()
    dist.destroy_process_group(group)
    del group, work
    until = time.monotonic() + 60
    while held() is not None and time.monotonic() < until:  # the thread may be about to look at it
        time.sleep(0.1)
        gc.collect()
    tell(same=bool(x.eq(n).all()), gone=held() is None)
    dist.destroy_process_group()


def workers() -> None:
    """Each epoch's data come from forked processes, which end while the training goes on."""
    rank, n = begin(20)
    torch.manual_seed(rank)
    data = TensorDataset(torch.randn(24, 50), torch.randn(24, 1))
    model = DDP(torch.nn.Linear(50, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(3):
        for x, y in DataLoader(data, 4, num_workers=2, persistent_workers=epoch == 1, multiprocessing_context="fork"):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    child = multiprocessing.get_context("fork").Process(target=dist.get_rank)
    child.start()
    child.join()
    weights = [torch.zeros(51) for _ in range(n)]
    dist.all_gather(weights, torch.cat([p.detach().flatten() for p in model.parameters()]))
    tell(same=all(torch.equal(weights[0], each) for each in weights))
    dist.destroy_process_group()


def open_at_exit(pending: bool) -> None:
    """Groups that are never destroyed, with or without something that nobody waits for."""
    begin(20)
    group = dist.new_group()
    x = torch.ones(3_000_000)
    dist.all_reduce(x)
    dist.all_reduce(x, group=group)
    model = DDP(torch.nn.Linear(5, 5))
    model(torch.ones(1, 5)).sum().backward()
    if pending:
        dist.all_reduce(x, async_op=True)


def many() -> None:
    """More ranks than cores train a few steps, and tell how much memory their groups have."""
    rank, n = begin(300)
    torch.manual_seed(rank)
    model = DDP(torch.nn.Sequential(torch.nn.Linear(100, 400), torch.nn.Linear(400, 100)), bucket_cap_mb=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(2, 100)).square().mean().backward()
        optimizer.step()
    total = torch.cat([p.detach().flatten() for p in model.parameters()])
    mean = total.clone()
    dist.all_reduce(mean, dist.ReduceOp.MAX)
    halves = [dist.new_group(range(start, n, 2)) for start in range(2)]
    dist.all_reduce(mean, dist.ReduceOp.MAX, group=halves[rank % 2])
    dist.barrier()
    tell(same=torch.equal(mean, total), shared=_shared_memory())
    dist.barrier()
    dist.destroy_process_group()


def _shared_memory() -> list[dict[str, int]]:
    """Return the bytes of each mapping that is shared and has no file that stays, and those of touched pages."""
    found, is_ours = [], False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):
            is_ours = words[1].endswith("s") and (len(words) < 6 or "(deleted)" in line)
            if is_ours:
                found.append({})
        elif is_ours and words[0] in ("Size:", "Rss:", "Pss:"):
            found[-1][words[0][:-1].lower()] = int(words[1]) * 1024
    return found
