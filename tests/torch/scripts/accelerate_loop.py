"""A loop over Accelerate, which takes the process group that is there; it makes none of its own but gloo's on a CPU.

torchrun --standalone --nproc-per-node 2 accelerate_loop.py gloo
"""

import json
import sys

import nets
import together
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import gather_object, set_seed
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

together.begin(sys.argv[1])
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
set_seed(7)
data = TensorDataset(torch.randn(72, 1, 28, 28), torch.randint(0, 10, (72,)))
model = nets.LeNet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model, optimizer, batches = accelerator.prepare(model, optimizer, DataLoader(data, 8, shuffle=True))
losses, seen = [], 0
for x, y in batches:
    with accelerator.accumulate(model):
        loss = cross_entropy(model(x), y)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    losses.append(loss.item())
    seen += len(accelerator.gather_for_metrics(y))
mean = accelerator.reduce(torch.tensor(losses).sum(), "mean").item()
told = {"losses": losses, "parameters": together.digest_of(accelerator.unwrap_model(model)), "seen": seen, "mean": mean}
every = gather_object([told])
if accelerator.is_main_process:
    cases = {"loop": {key: [each[key] for each in every] for key in told}}
    print(json.dumps({"backend": dist.get_backend(), "cases": cases}))
accelerator.end_training()
