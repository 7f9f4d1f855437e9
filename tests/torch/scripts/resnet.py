"""A small ResNet with batch normalization, trained with DistributedDataParallel.

torchrun --standalone --nproc-per-node 2 resnet.py gloo
"""

import nets
import together
import torch
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP


def train(memory_format=torch.contiguous_format, **options):
    model = DDP(nets.ResNet().to(memory_format=memory_format), bucket_cap_mb=0.01, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    source = together.generator()
    losses = []
    for _ in range(4):
        x = torch.randn(8, 3, 16, 16, generator=source).contiguous(memory_format=memory_format)
        y = torch.randint(0, 10, (8,), generator=source)
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    model.eval()
    model(torch.randn(2, 3, 16, 16))
    return {"losses": losses, "parameters": together.digest_of(model.module)}


def plain():
    return train()


def own_buffers():
    """Each rank keeps its own means and variances: only parameters agree."""
    told = train(broadcast_buffers=False)
    return {"losses": told["losses"]}


def channels_last():
    return train(torch.channels_last)


def channels_last_bucket_view():
    return train(torch.channels_last, gradient_as_bucket_view=True, static_graph=True)


if __name__ == "__main__":
    together.run(plain, own_buffers, channels_last, channels_last_bucket_view)
