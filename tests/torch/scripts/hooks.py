"""Trains a network with DDP alone, with psframe's fused hook, and with each codec, and prints what came of it."""

import hashlib
import json

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import psframe.torch

STEPS = 6
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-3),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
}


def digest(tensors):
    return hashlib.sha256(b"".join(t.detach().contiguous().numpy().tobytes() for t in tensors)).hexdigest()


def everywhere(value):
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, value)
    return every


class Scale(torch.nn.Module):
    """Has a parameter without a dimension, as an optimizer's number of steps is."""

    def __init__(self):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        return self.factor * x


def network():
    torch.manual_seed(0)
    layers = (torch.nn.Linear(20, 301), torch.nn.ReLU(), torch.nn.Linear(301, 10), Scale())
    return DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.01)


def train(model, optimizer, steps=STEPS):
    torch.manual_seed(10 + dist.get_rank())
    x, labels = torch.randn(16, 20), torch.randint(0, 10, (16,))
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def trained(name, fused):
    model = network()
    optimizer = OPTIMIZERS[name](model.parameters())
    hook = psframe.torch.fused_hook(optimizer) if fused else None
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    if hook:
        model.register_comm_hook(None, hook)
    losses = train(model, optimizer, 3)
    schedule.step()
    losses += train(model, optimizer, STEPS - 3)
    if hook:
        hook.consolidate()
    saved = optimizer.state_dict()
    state = digest(v for s in saved["state"].values() for v in s.values() if torch.is_tensor(v))
    found = {"losses": losses, "parameters": everywhere(digest(model.parameters())), "state": state}
    again = OPTIMIZERS[name](model.parameters())
    if hook:
        hook = psframe.torch.fused_hook(again)
        model = DistributedDataParallel(model.module, bucket_cap_mb=0.01)
        model.register_comm_hook(None, hook)
    again.load_state_dict(saved)
    if hook:
        hook.restore()
    return {**found, "continued": [train(model, again, 2), digest(model.parameters())]}


def refused(make):
    try:
        make()
    except (ValueError, psframe.UserError) as error:
        return str(error)
    return "nothing"


def exchanged(codec):
    """Return what becomes of gradients of rank + 1, with both signs by turns: a number or its negative on each rank."""
    model = DistributedDataParallel(torch.nn.Linear(1, 64, bias=False))
    model.register_comm_hook(None, psframe.torch.compressed_hook(codec))
    signs = torch.tensor([1.0, -1.0]).repeat(32)
    (model(torch.full((1, 1), dist.get_rank() + 1.0)) * signs).sum().backward()
    return everywhere(model.module.weight.grad.flatten().tolist())


def main():
    dist.init_process_group("psframe")
    told = {f"{name} {kind}": trained(name, kind == "fused") for name in OPTIMIZERS for kind in ("plain", "fused")}
    for codec in ("fp16", "bf16", "onebit", {"name": "topk", "density": 0.2}):
        model = network()
        model.register_comm_hook(None, psframe.torch.compressed_hook(codec))
        losses = train(model, torch.optim.SGD(model.parameters(), lr=0.05), 12)
        name = codec if isinstance(codec, str) else codec["name"]
        told[name] = {"losses": losses, "parameters": everywhere(digest(model.parameters())), "mean": exchanged(codec)}
    used = OPTIMIZERS["sgd"](network().parameters())
    used.state[used.param_groups[0]["params"][0]] = {"momentum_buffer": None}
    told["stateful"] = refused(lambda: psframe.torch.fused_hook(used))
    told["codec"] = refused(lambda: psframe.torch.compressed_hook("nosuch"))
    if dist.get_rank() == 0:
        print(json.dumps(told), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
