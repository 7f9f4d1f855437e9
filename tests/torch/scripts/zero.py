"""ZeroRedundancyOptimizer: each rank keeps the optimizer's state of its share of the parameters.

torchrun --standalone --nproc-per-node 2 zero.py gloo
"""

import nets
import together
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import hook_with_zero_step
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP


def train(model, optimizer, steps=4):
    source = together.generator()
    losses = []
    for _ in range(steps):
        x, y = torch.randn(8, 1, 28, 28, generator=source), torch.randint(0, 10, (8,), generator=source)
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "parameters": together.digest_of(model.module)}


def adam():
    model = DDP(nets.LeNet(), bucket_cap_mb=0.05)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=1e-3)
    told = train(model, optimizer)
    optimizer.consolidate_state_dict(to=0)
    whole = len(optimizer.state_dict()["state"]) if dist.get_rank() == 0 else None
    return {**told, "state": whole}


def as_bucket_view():
    """Parameters that lie in the buckets that are broadcast."""
    model = DDP(nets.LeNet(), bucket_cap_mb=0.05, gradient_as_bucket_view=True)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.SGD, parameters_as_bucket_view=True, lr=0.05, momentum=0.9
    )
    return train(model, optimizer)


def overlap():
    """A step of the optimizer for each bucket inside the backward, whose updates are broadcast while it goes on."""
    model = DDP(nets.LeNet(), bucket_cap_mb=0.05, gradient_as_bucket_view=True)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.SGD, overlap_with_ddp=True, lr=0.05
    )
    model.register_comm_hook(None, hook_with_zero_step(allreduce_hook, model, optimizer))
    return train(model, optimizer, 6)


if __name__ == "__main__":
    together.run(adam, as_bucket_view, overlap, but={"gloo": [overlap]})  # which PyTorch refuses
