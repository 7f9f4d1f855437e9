"""A rank of the benchmark ``torch`` (:func:`main`); started by it, alone it has no use."""

import json
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import psframe.torch
from psframe.bench.torch_models import MODELS

STEPS = 10  # of a network in a round
#: bytes that a round reduces, so that a round of small ones is long enough to time
ROUND_BYTES, MOST_CALLS = 1 << 25, 200
WARM = 3

Task = Callable[[], None]


def main(asked: dict[str, Any]) -> None:
    dist.init_process_group("gloo")
    psframe.torch.register()
    groups = [dist.new_group(backend=name) for name in ("psframe", asked["against"])]
    times = {}
    for n_bytes in asked["sizes"]:
        calls = max(1, min(MOST_CALLS, ROUND_BYTES // max(1, n_bytes)))
        tensors = [torch.ones(n_bytes // 4) for _ in groups]
        tasks = [_reduce(tensor, group, calls) for tensor, group in zip(tensors, groups, strict=True)]
        times[f"all_reduce {n_bytes:,}"] = _in_turn(tasks, asked["rounds"], calls)
    for name in asked["models"]:
        tasks = [_steps(name, group, asked["global_batch"]) for group in groups]
        times[f"step of {name}"] = _in_turn(tasks, asked["rounds"], STEPS)
    if dist.get_rank() == 0:
        print(json.dumps(times), flush=True)
    dist.destroy_process_group()


def _in_turn(tasks: list[tuple[Task, Task]], rounds: int, calls: int) -> list[list[float]]:
    """Return seconds a call by task and round, of the slowest rank; a task is what is timed, and what comes before."""
    found = torch.zeros(len(tasks), rounds, dtype=torch.float64)
    for task, _ in tasks:
        for _ in range(WARM):
            task()
    for number in range(rounds):
        for at in (range(len(tasks)), range(len(tasks) - 1, -1, -1))[number % 2]:
            task, prepare = tasks[at]
            prepare()
            dist.barrier()
            began = perf_counter()
            task()
            found[at, number] = (perf_counter() - began) / calls
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return [list(map(float, row)) for row in found]


def _reduce(tensor: torch.Tensor, group: Any, calls: int) -> tuple[Task, Task]:
    def task() -> None:
        for _ in range(calls):
            dist.all_reduce(tensor, group=group)

    def prepare() -> None:
        tensor.fill_(1e-3)  # its lines are this core's own again

    return task, prepare


def _steps(name: str, group: Any, global_batch: int) -> tuple[Task, Task]:
    made, shape = MODELS[name]
    torch.manual_seed(0)
    model = DistributedDataParallel(made(), process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(dist.get_rank())
    n = max(1, global_batch // dist.get_world_size())
    x, labels = torch.randn(n, *shape), torch.randint(0, 10, (n,))

    def task() -> None:
        for _ in range(STEPS):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), labels).backward()
            optimizer.step()

    return task, lambda: None


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
