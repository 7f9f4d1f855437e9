"""What ranks do while something goes wrong: each function is run by every rank of a job (``tests/torch/forked.py``)."""

import json
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as DDP

SIZE = 40_000  # floats of each collective


def backend(name: str) -> None:
    """Make a backend's name known, before ranks are forked."""
    if name == "psframe":
        import psframe.torch  # noqa: F401


def begin(timeout_s: float = 60, **options: Any) -> tuple[int, int]:
    """Join the others; return this rank's number, and how many there are."""
    torch.set_num_threads(1)
    dist.init_process_group(os.environ["BACKEND"], timeout=timedelta(seconds=timeout_s), **options)
    return dist.get_rank(), dist.get_world_size()


def _collective(name: str, rank: int, n: int) -> Callable[[], Any]:
    """Return a call that all ranks make again and again."""
    x, every = torch.ones(SIZE), torch.ones(n * SIZE)
    parts, objects = list(every.chunk(n)), [None] * n
    if name.startswith("ddp"):
        return _step(name)
    if name == "ring":
        given = torch.ones(SIZE)
        sides = [dist.P2POp(dist.isend, x, (rank + 1) % n), dist.P2POp(dist.irecv, given, (rank - 1) % n)]
        return lambda: [work.wait() for work in dist.batch_isend_irecv(sides)]
    return {
        "all_reduce": lambda: dist.all_reduce(x.fill_(1)),
        "async": lambda: dist.all_reduce(x.fill_(1), async_op=True).wait(),
        "future": lambda: dist.all_reduce(x.fill_(1), async_op=True).get_future().wait(),
        "broadcast": lambda: dist.broadcast(x, 0),
        "reduce": lambda: dist.reduce(x.fill_(1), 0),
        "all_gather": lambda: dist.all_gather(parts, x),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(every, x),
        "gather": lambda: dist.gather(x, parts if rank == 0 else None),
        "scatter": lambda: dist.scatter(x, parts if rank == 0 else None),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(x, every.fill_(1)),
        "all_to_all": lambda: dist.all_to_all_single(torch.empty_like(every), every),
        "barrier": dist.barrier,
        "objects": lambda: dist.all_gather_object(objects, rank),
        "new_group": dist.new_group,
    }[name]


def _step(name: str) -> Callable[[], Any]:
    """Return a forward and backward of a model, of which each gradient is exchanged."""
    net = torch.nn.Sequential(torch.nn.Linear(200, 199), torch.nn.BatchNorm1d(199, affine=False))
    model = DDP(net, bucket_cap_mb=1, static_graph=name == "ddp_static", broadcast_buffers=name == "ddp_buffers")
    if name == "ddp_hook":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return lambda: model(torch.rand(2, 200)).sum().backward()


def lost(name: str, victim: int, how: str, timeout_s: float) -> None:
    """A rank gets a signal while it is in a collective, since another one is late for it."""
    # of PyTorch's store, where ranks wait while a group is made, the time-out is the group's first one
    rank, n = begin(timeout_s) if name == "new_group" else begin()
    call = _collective(name, rank, n)
    pids, inside = [None] * n, Path(os.environ["FOLDER"]) / "inside"
    dist.all_gather_object(pids, os.getpid())
    late = 0 if name == "ddp_static" else 3  # whose first step is like no other
    for turn in range(100):
        if turn == late:  # all have come: what begins takes longer on a busy machine
            dist.group.WORLD.set_timeout(timedelta(seconds=timeout_s))
        if turn == late and rank == victim:
            inside.touch()
        if turn == late and rank == (0 if victim == n - 1 else n - 1):
            while not inside.exists():
                time.sleep(0.01)
            time.sleep(0.2)
            os.kill(pids[victim], getattr(signal, how))
        call()
    print("nothing was noticed")


def lost_with_child() -> None:
    """Rank 1 is killed, and a process that it has forked lives on."""
    rank, _ = begin()
    x = torch.ones(SIZE)
    dist.all_reduce(x)
    if rank == 1:
        if os.fork() == 0:
            signal.pause()
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(x)


def left(how: str) -> None:
    """Rank 1 leaves, in some way, while the others go on."""
    rank, _ = begin(20)
    x = torch.ones(SIZE)
    dist.all_reduce(x)
    if rank == 1 and how == "returns":
        return
    if rank == 1 and how == "raises":
        raise ValueError("a mistake of the script")
    if rank == 1 and how == "exits":
        os._exit(7)
    if rank == 1 and how == "destroys":
        dist.destroy_process_group()
        return
    dist.all_reduce(x)


def left_before_messages(kind: str) -> None:
    """A rank without a part in a message has left: ``pair``: rank 2; ``any``: each sender once it has sent."""
    rank, n = begin(20)
    x = torch.zeros(3)
    dist.barrier()
    if kind == "pair" and rank == 1:
        time.sleep(1)  # until rank 2 is seen to have left
        dist.send(torch.ones(3), 0)
    elif kind == "pair" and rank == 0:
        dist.recv(x, 1)
        tell(come=[x.tolist()])
    elif kind == "any" and rank:
        time.sleep(0.7 * rank)
        dist.send(torch.full((3,), float(rank)), 0)
    elif kind == "any":
        tell(come=[[dist.recv(x), *x.tolist()] for _ in range(n - 1)])
    dist.destroy_process_group()


def tell(**results: Any) -> None:
    print(json.dumps(results), flush=True)


def mismatched() -> None:
    """Ranks that call what does not fit together, each time in a group of its own; the last one fits."""
    rank, _ = begin(20)
    cases = {
        "size": lambda group: dist.all_reduce(torch.ones(10 if rank else 3_000_000), group=group),
        "backward": lambda group: _uneven_model(rank, group),
        "fits": lambda group: dist.all_reduce(torch.ones(10), group=group),
    }
    told = {}
    for name, call in cases.items():
        group = dist.new_group()
        told[name] = _error(call, group)
    tell(errors=told)
    dist.destroy_process_group()


def _error(call: Callable[..., Any], *args: Any) -> list[str] | None:
    """Return what a call raises, or None."""
    try:
        call(*args)
    except Exception as error:
        return [type(error).__name__, str(error)]
    return None


def _uneven_model(rank: int, group: Any) -> None:
    """Train a model of which one rank runs a step less."""
    model = DDP(torch.nn.Linear(30, 30), process_group=group)
    for _ in range(2 if rank else 1):
        model(torch.ones(1, 30)).sum().backward()
    if not rank:
        dist.all_reduce(torch.ones(77), group=group)


def impossible() -> None:
    """Arguments that no rank can use, refused on each; the group goes on."""
    rank, n = begin(20)
    x = torch.ones(6)
    cases = {
        "output of another size": lambda: dist.all_gather_into_tensor(torch.ones(n * 6 + 1), x),
        "input that is not a multiple": lambda: dist.reduce_scatter_tensor(torch.ones(2), torch.ones(2 * n + 1)),
        "lists of other lengths": lambda: dist.all_gather([torch.ones(6)] * (n + 1), x),
        "parts of other sizes": lambda: dist.all_to_all_single(torch.ones(6), torch.ones(6), [9] * n, [9] * n),
        "bits of floats": lambda: dist.all_reduce(x, dist.ReduceOp.BXOR),
        "no such rank": lambda: dist.broadcast(x, n + 3),
        "to itself": lambda: dist.send(x, rank),
        "meta": lambda: dist.all_reduce(torch.ones(3, device="meta")),
    }
    told = {name: _error(call) for name, call in cases.items()}
    after = torch.ones(10)
    dist.all_reduce(after)
    tell(errors=told, after=after.eq(n).all().item())
    dist.destroy_process_group()


def interrupted(signal_name: str) -> None:
    """Rank 0 gets a signal while it waits for the others, who do not come, and then end."""
    rank, n = begin(60)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    pids = [None] * n
    dist.all_gather_object(pids, os.getpid())
    if rank == 0:
        threading.Timer(0.3, os.kill, (os.getpid(), getattr(signal, signal_name))).start()
        dist.all_reduce(torch.ones(SIZE))
    select.select([os.pidfd_open(pids[0])], [], [])  # until it has ended
