"""Device meshes, distributed tensors and tensor parallelism.

torchrun --standalone --nproc-per-node 4 mesh.py gloo
"""

import nets
import together
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.functional import cross_entropy

STYLES = {
    **dict.fromkeys(("q", "k", "v", "up"), ColwiseParallel()),
    **dict.fromkeys(("o", "down"), RowwiseParallel()),
}
STYLES_OF_SEQUENCES = {
    "norm_one": SequenceParallel(),
    "norm_two": SequenceParallel(),
    **dict.fromkeys(("q", "k", "v", "up"), ColwiseParallel(input_layouts=Shard(1))),
    **dict.fromkeys(("o", "down"), RowwiseParallel(output_layouts=Shard(1), use_local_output=False)),
}


def redistribute():
    """A tensor is sharded by rows, by columns, whole, and a sum, with sizes that the ranks do not divide."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = torch.randn(7, 13)
    seen = []
    for first in (Shard(0), Shard(1), Replicate()):
        tensor = distribute_tensor(whole, mesh, [first])
        for then in (Shard(1), Shard(0), Replicate()):
            assert torch.equal(tensor.redistribute(mesh, [then]).full_tensor(), whole), (first, then)
    partial = DTensor.from_local(torch.full((5, 3), dist.get_rank() + 1.0), mesh, [Partial()])
    seen.append(partial.redistribute(mesh, [Shard(0)]).full_tensor())
    seen.append(partial.redistribute(mesh, [Replicate()]).to_local())
    left, right = (
        distribute_tensor(torch.randn(8, 12), mesh, [Shard(1)]),
        distribute_tensor(torch.randn(12, 6), mesh, [Shard(0)]),
    )
    seen.append((left @ right).full_tensor())
    return {"losses": [tensor.sum().item() for tensor in seen], "parameters": together.digest(seen)}


def train(model, seed=0, steps=3, first=lambda x: x):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, foreach=False)
    source = torch.Generator().manual_seed(seed)
    losses = []
    for _ in range(steps):
        words = torch.randint(0, 64, (4, 17), generator=source)
        loss = cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    whole = [p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters()]
    return {"losses": losses, "parameters": together.digest(whole)}


def tensor_parallel():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nets.Transformer(tied=False, heads=12, width=48)
    for layer in model.layers:
        parallelize_module(layer, mesh, STYLES)
    return train(model)


def sequence_parallel():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = torch.nn.Sequential(nets.Layer(48, 12), nets.Layer(48, 12))
    for layer in model:
        parallelize_module(layer, mesh, STYLES_OF_SEQUENCES)
    x = distribute_tensor(torch.randn(2, 24, 48), mesh, [Shard(1)])
    y = model(x).redistribute(mesh, [Replicate()])
    y.pow(2).mean().backward()
    gradients = [p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad for p in model.parameters()]
    return {"losses": [y.to_local().sum().item()], "parameters": together.digest(gradients)}


def tensor_parallel_and_sharded():
    """Two dimensions: ranks in pairs have parts of the layers, and these are sharded over the pairs."""
    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("data", "model"))
    model = nets.Transformer(tied=False, heads=4)
    for layer in model.layers:
        parallelize_module(layer, mesh["model"], STYLES)
        fully_shard(layer, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    return train(model, seed=dist.get_rank() // 2)


if __name__ == "__main__":
    together.run(redistribute, tensor_parallel, sequence_parallel, tensor_parallel_and_sharded)
