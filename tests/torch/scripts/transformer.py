"""A small language model, trained with DistributedDataParallel.

torchrun --standalone --nproc-per-node 2 transformer.py gloo
"""

import nets
import together
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def train(optimizer_of=torch.optim.AdamW, clip=True, ddp=None, **options):
    model = DDP(nets.Transformer(**options), bucket_cap_mb=0.02, **(ddp or {}))
    optimizer = optimizer_of(model.parameters(), lr=1e-2)
    words = torch.randint(0, 64, (4 * 4 * dist.get_world_size(), 17), generator=torch.Generator().manual_seed(1))
    losses = []
    for (batch,) in DataLoader(TensorDataset(words), 4, sampler=DistributedSampler(words)):
        optimizer.zero_grad()
        loss = cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "parameters": together.digest_of(model.module)}


def plain():
    return train()


def checkpointing():
    """Activations that backward computes once more."""
    return train(checkpointing=True, ddp={"static_graph": True})


if __name__ == "__main__":
    together.run(plain, checkpointing)
