"""A model in stages, a stage a rank, between which activations and their gradients are sent.

torchrun --standalone --nproc-per-node 2 pipeline.py gloo
"""

import nets
import together
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.nn.functional import mse_loss


def stage(index, of):
    torch.manual_seed(index)
    return PipelineStage(nn.Sequential(nets.Layer(16, 2), nn.Linear(16, 16)), index, of, torch.device("cpu"))


def train(kind, stages_of_rank=1):
    rank, size = dist.get_rank(), dist.get_world_size()
    stages = [stage(rank + i * size, size * stages_of_rank) for i in range(stages_of_rank)]
    schedule = kind(stages[0] if stages_of_rank == 1 else stages, 2 * size, mse_loss)
    parameters = [p for each in stages for p in each.submod.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    source = torch.Generator().manual_seed(3)
    losses = []
    for _ in range(3):
        x, y = torch.randn(2 * 2 * size, 5, 16, generator=source), torch.randn(2 * 2 * size, 5, 16, generator=source)
        parts = []
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(x, target=y, losses=parts) if size == 1 else schedule.step(x)
        elif rank == size - 1:
            schedule.step(target=y, losses=parts)
        else:
            schedule.step()
        optimizer.step()
        losses += [part.item() for part in parts]
    return {"losses": losses, "own": together.digest(parameters)}


def gpipe():
    return train(ScheduleGPipe)


def one_forward_one_backward():
    return train(Schedule1F1B)


def interleaved():
    return train(ScheduleInterleaved1F1B, 2)


if __name__ == "__main__":
    together.run(gpipe, one_forward_one_backward, interleaved)
