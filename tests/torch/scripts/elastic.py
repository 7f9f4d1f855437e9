"""A training whose rank 1 ends once, and which torchrun starts again from the last snapshot.

torchrun --standalone --max-restarts 1 --nproc-per-node 2 elastic.py gloo FOLDER
"""

import json
import os
import signal
import sys
from pathlib import Path

import nets
import together
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP

backend, folder = sys.argv[1], Path(sys.argv[2])
together.begin(backend)
rank = dist.get_rank()
torch.manual_seed(7)
model = DDP(nets.LeNet(), bucket_cap_mb=0.05)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
snapshot, killed = folder / "snapshot.pt", folder / "killed"
begin = 0
if snapshot.exists():
    state = torch.load(snapshot)
    begin = state["step"]
    model.module.load_state_dict(state["model"])
for step in range(begin, 6):
    source = together.generator(step)
    x, y = torch.randn(8, 1, 28, 28, generator=source), torch.randint(0, 10, (8,), generator=source)
    if step == 4 and rank == 1 and "never" not in sys.argv and not killed.exists():
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.zero_grad()
    cross_entropy(model(x), y).backward()
    optimizer.step()
    if step == 2 and rank == 0:
        part = folder / "part.pt"
        torch.save({"step": step + 1, "model": model.module.state_dict()}, part)
        part.rename(snapshot)
if rank == 0:
    restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    print(
        json.dumps({"parameters": together.digest_of(model.module), "restarts": restarts, "begin": begin}), flush=True
    )
dist.destroy_process_group()
