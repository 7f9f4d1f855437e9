"""A language model whose parameters are sharded: fully_shard, and the older FullyShardedDataParallel.

torchrun --standalone --nproc-per-node 2 fsdp2.py gloo
"""

import nets
import together
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.functional import cross_entropy


def sharded(mesh=None, **options):
    mesh = mesh or init_device_mesh("cpu", (dist.get_world_size(),))
    model = nets.Transformer()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def train(model, whole=None, before=lambda step: None, steps=4):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    source = together.generator()
    losses = []
    for step in range(steps):
        before(step)
        words = torch.randint(0, 64, (4, 17), generator=source)
        loss = cross_entropy(model(words[:, :-1]).float().flatten(0, 1), words[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    whole = whole or [parameter.full_tensor() for parameter in model.parameters()]
    return {"losses": losses, "parameters": together.digest(whole)}


def float32():
    return train(sharded())


def bf16():
    """Parameters are gathered in bfloat16, gradients reduced in float32."""
    return train(sharded(mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32)))


def bf16_reduced():
    """Gradients are reduced in bfloat16, too."""
    return train(sharded(mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16)))


def kept():
    """Parameters stay whole from the forward to the backward."""
    return train(sharded(reshard_after_forward=False))


def accumulated():
    """Gradients are reduced in every second step."""
    model = sharded()
    return train(model, before=lambda step: model.set_requires_gradient_sync(bool(step % 2)))


def hybrid():
    """Sharded in pairs of ranks, with replicas; at an odd number of ranks, replicas of one."""
    size = dist.get_world_size()
    shape = (size // 2, 2) if size % 2 == 0 else (size, 1)
    return train(sharded(init_device_mesh("cpu", shape, mesh_dim_names=("replicas", "shards"))))


def from_communication_memory():
    """What is gathered and reduced lies where the backend says, if it does."""
    model = sharded()
    for module in (model, *model.layers):
        module.set_allocate_memory_from_process_group_for_comm(True)
    return train(model)


def fsdp1(precision=None):
    wrapped = FullyShardedDataParallel(
        nets.Transformer(tied=False),
        auto_wrap_policy=ModuleWrapPolicy({nets.Layer}),
        device_id=torch.device("cpu"),
        use_orig_params=True,
        mixed_precision=precision,
    )
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=1e-2)
    source = together.generator()
    losses = []
    for _ in range(3):
        words = torch.randint(0, 64, (4, 17), generator=source)
        loss = cross_entropy(wrapped(words[:, :-1]).float().flatten(0, 1), words[:, 1:].flatten())
        loss.backward()
        wrapped.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    with FullyShardedDataParallel.summon_full_params(wrapped):
        return {"losses": losses, "parameters": together.digest(wrapped.parameters())}


def fsdp1_bf16():
    return fsdp1(MixedPrecision(torch.bfloat16, torch.bfloat16, torch.bfloat16))


if __name__ == "__main__":
    together.run(float32, bf16, bf16_reduced, kept, accumulated, hybrid, from_communication_memory, fsdp1, fsdp1_bf16)
