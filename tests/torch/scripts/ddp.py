"""LeNet on random images with DistributedDataParallel, in the ways in which it is used.

torchrun --standalone --nproc-per-node 2 ddp.py gloo plain join
"""

from contextlib import nullcontext

import nets
import together
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP

SMALL_BUCKETS = {"bucket_cap_mb": 0.05}


def data(steps=4, batch=8):
    """Return this rank's batches."""
    source = together.generator()
    x = torch.randn(steps, batch, 1, 28, 28, generator=source)
    return list(zip(x, torch.randint(0, 10, (steps, batch), generator=source), strict=True))


def told(model, losses):
    return {"losses": losses, "parameters": together.digest_of(model)}


def train(net, *, hook=None, dtype=torch.float32, last=None, **options):
    model = DDP(net.to(dtype), **SMALL_BUCKETS, **options)
    if hook:
        hook(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for x, y in data():
        optimizer.zero_grad()
        loss = cross_entropy(model(x.to(dtype)).float(), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if last:
        last(model)
    return told(model, losses)


def plain():
    return train(nets.LeNet())


def bucket_view():
    return train(nets.LeNet(), gradient_as_bucket_view=True)


def static_graph():
    return train(nets.LeNet(), static_graph=True)


def static_bucket_view():
    return train(nets.LeNet(), static_graph=True, gradient_as_bucket_view=True)


def find_unused():
    """A branch is left out by some ranks in some steps."""
    net = nets.Branches()
    model = DDP(net, find_unused_parameters=True, **SMALL_BUCKETS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for step, (x, y) in enumerate(data()):
        optimizer.zero_grad()
        loss = cross_entropy(model(x, bool((step + dist.get_rank()) % 2) and step < 3), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return told(model, losses)


def no_sync():
    """Gradients are added up over two batches, and exchanged with the second."""
    model = DDP(nets.LeNet(), **SMALL_BUCKETS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for step, (x, y) in enumerate(data(6)):
        with nullcontext() if step % 2 else model.no_sync():
            loss = cross_entropy(model(x), y)
            loss.backward()
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return told(model, losses)


def join():
    """Rank r has r batches more than rank 0."""
    model = DDP(nets.LeNet(), **SMALL_BUCKETS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    with model.join():
        for x, y in data(2 + dist.get_rank()):
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return told(model, losses)


def allreduce_hook():
    return train(nets.LeNet(), hook=lambda model: model.register_comm_hook(None, default_hooks.allreduce_hook))


def fp16_hook():
    return train(nets.LeNet(), hook=lambda model: model.register_comm_hook(None, default_hooks.fp16_compress_hook))


def fp16_wrapped_hook():
    """One hook around another, whose futures are chained."""
    wrapped = default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook)
    return train(nets.LeNet(), hook=lambda model: model.register_comm_hook(None, wrapped), gradient_as_bucket_view=True)


def powersgd_hook():
    """Low-rank gradients from the second step on: allreduces that are begun when others have ended."""

    def register(model):
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

    return train(nets.LeNet(), hook=register)


def builtin_hook():
    """The one that C++ has."""
    return train(nets.LeNet(), hook=lambda model: model._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE))


def builtin_fp16_hook():
    return train(
        nets.LeNet(), hook=lambda model: model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    )


def batch_norm():
    """Buffers of rank 0 reach the others with each forward."""
    return train(nets.Normed(), last=lambda model: model.eval()(torch.zeros(1, 1, 28, 28)))


def checkpointed():
    return train(nets.Checkpointed())


def two_optimizers():
    net = nets.LeNet()
    features = torch.optim.SGD(net.features.parameters(), lr=0.05)
    head = torch.optim.Adam(net.head.parameters(), lr=1e-3)
    model = DDP(net, **SMALL_BUCKETS)
    losses = []
    for x, y in data():
        for optimizer in (features, head):
            optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        for optimizer in (features, head):
            optimizer.step()
        losses.append(loss.item())
    return told(model, losses)


def two_models():
    """Two models of groups of their own, of which one backward goes through both."""
    first = DDP(nets.LeNet(), process_group=dist.new_group(), **SMALL_BUCKETS)
    second = DDP(nets.LeNet(), process_group=dist.new_group(), **SMALL_BUCKETS)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.05)
    losses = []
    for x, y in data():
        optimizer.zero_grad()
        loss = cross_entropy(first(x) + second(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "parameters": together.digest([*first.parameters(), *second.parameters()])}


def bf16():
    return train(nets.LeNet(), dtype=torch.bfloat16)


def float64():
    return train(nets.LeNet(), dtype=torch.float64)


def autocast():
    """Float32 parameters, whose forward is in bfloat16."""
    with torch.autocast("cpu", torch.bfloat16):
        return train(nets.LeNet())


if __name__ == "__main__":
    together.run(
        *(plain, bucket_view, static_graph, static_bucket_view, find_unused, no_sync, join),
        *(allreduce_hook, fp16_hook, fp16_wrapped_hook, batch_norm, checkpointed, two_optimizers, two_models),
        *(bf16, float64, autocast, powersgd_hook, builtin_hook, builtin_fp16_hook),
        # gloo hangs with the one, and C++ has the other for backends of its own
        but={"gloo": [powersgd_hook], "psframe": [builtin_fp16_hook]},
    )
