"""Checkpoints of sharded models, which another number of ranks can read.

torchrun --standalone --nproc-per-node 2 checkpoint.py gloo save    # writes into $CHECKPOINT
torchrun --standalone --nproc-per-node 3 checkpoint.py gloo load
"""

import os

import nets
import together
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

FOLDER = os.environ["CHECKPOINT"]


def trained(steps):
    model = nets.Transformer(tied=False)
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    source = together.generator()
    for _ in range(steps):
        words = torch.randint(0, 64, (4, 17), generator=source)
        cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def state_of(model, optimizer):
    of_model, of_optimizer = get_state_dict(model, optimizer)
    return {"model": of_model, "optimizer": of_optimizer}


def told(model, optimizer):
    """Return what a model has, and what its optimizer has gathered."""
    moments = [state[key].full_tensor() for state in optimizer.state.values() for key in ("exp_avg", "exp_avg_sq")]
    return {"parameters": together.digest([*(p.full_tensor() for p in model.parameters()), *moments])}


def save():
    model, optimizer = trained(2)
    dcp.save(state_of(model, optimizer), checkpoint_id=f"{FOLDER}/saved")
    return told(model, optimizer)


def save_async():
    """A thread writes, with collectives of its own, while the training goes on."""
    model, optimizer = trained(2)
    saved = told(model, optimizer)
    writing = dcp.async_save(
        state_of(model, optimizer), checkpoint_id=f"{FOLDER}/async", process_group=dist.new_group()
    )
    for _ in range(3):
        cross_entropy(
            model(torch.ones(1, 4, dtype=torch.long)).flatten(0, 1), torch.ones(4, dtype=torch.long)
        ).backward()
    writing.result()
    return saved


def load(name="saved"):
    model, optimizer = trained(1)  # an optimizer without a state has no place for what is read
    state = state_of(model, optimizer)
    dcp.load(state, checkpoint_id=f"{FOLDER}/{name}")
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return told(model, optimizer)


def load_async():
    return load("async")


def whole():
    """The whole state on rank 0, and from there to the ranks that have nothing."""
    model, _ = trained(1)
    full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    other, _ = trained(0)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    dcp.state_dict.set_model_state_dict(other, full if dist.get_rank() == 0 else {}, options=options)
    return {"parameters": together.digest(p.full_tensor() for p in other.parameters())}


if __name__ == "__main__":
    together.run(save, load, save_async, load_async, whole)
