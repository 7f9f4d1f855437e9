"""Compiled models under DistributedDataParallel, and collectives that are compiled with what is around them.

torchrun --standalone --nproc-per-node 2 compile_ddp.py gloo
"""

import nets
import together
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP


def train(model, whole=None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    source = together.generator()
    losses = []
    for _ in range(3):
        x, y = torch.randn(8, 1, 28, 28, generator=source), torch.randint(0, 10, (8,), generator=source)
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "parameters": together.digest(whole() if whole else model.parameters())}


def ddp_of_compiled():
    return train(DDP(torch.compile(nets.LeNet())))


def compiled_ddp():
    """The compiler splits the graph where DDP's buckets end."""
    wide = torch.nn.Sequential(
        nets.LeNet(), torch.nn.Linear(10, 600), torch.nn.Linear(600, 600), torch.nn.Linear(600, 10)
    )
    return train(torch.compile(DDP(wide, bucket_cap_mb=1)))


def compiled_ddp_with_buffers():
    return train(torch.compile(DDP(nets.Normed())))


def functional_collectives():
    """All of a graph, with its allreduce, is one function."""

    @torch.compile(fullgraph=True)
    def step(x):
        gathered = functional.all_gather_tensor(x * 2, 0, dist.group.WORLD)
        return functional.all_reduce(gathered.sum(0), "sum", dist.group.WORLD) + 1

    result = step(torch.full((4, 3), dist.get_rank() + 1.0))
    return {"losses": result.tolist(), "parameters": together.digest([result])}


def compiled_fsdp():
    net = nets.LeNet()
    fully_shard(net, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    net.compile()
    return train(net, lambda: [p.full_tensor() for p in net.parameters()])


if __name__ == "__main__":
    together.run(ddp_of_compiled, compiled_ddp, compiled_ddp_with_buffers, functional_collectives, compiled_fsdp)
