"""Groups of PyTorch's backend over hosts with a network between them: the bits of one host, and a host that is lost."""

import os
import re
import signal
import subprocess
import sys

import pytest

from psframe.bench.torch import reserved_port
from tests import hosts
from tests.helpers import torchrun
from tests.helpers.launcher import ROOT

pytest.importorskip("torch", reason="PyTorch, whose backend this is, is not installed: pip install -e .[torch]")

SCRIPT = """
import hashlib, os, sys, time
from datetime import timedelta
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import psframe.torch
dist.init_process_group("psframe", timeout=timedelta(seconds=20))
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(300, 500), torch.nn.ReLU(), torch.nn.Linear(500, 10))
model, n = DistributedDataParallel(net), dist.get_world_size()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(dist.get_rank())
x, labels = torch.randn(8, 300), torch.randint(0, 10, (8,))
for step in range(int(sys.argv[1])):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), labels).backward()
    optimizer.step()
    if step == 3 and dist.get_rank() == 0:
        print("trains", flush=True)
flat = torch.cat([p.detach().flatten() for p in model.parameters()])
print(dist.get_rank(), hashlib.sha256(flat.numpy().tobytes()).hexdigest(), flush=True)
dist.destroy_process_group()
"""


def started(several, places, script, steps, port):
    """Start a rank on each of the hosts named by number."""
    address = several.addresses[places[0]]
    ranks = []
    for rank, place in enumerate(places):
        env = {"RANK": str(rank), "WORLD_SIZE": str(len(places)), "MASTER_ADDR": address, "MASTER_PORT": str(port)}
        words = ["env", *(f"{k}={v}" for k, v in env.items()), "OMP_NUM_THREADS=1", f"PYTHONPATH={ROOT}"]
        words += [sys.executable, str(script), str(steps)]
        command, pipe = several.on(place, words), subprocess.PIPE
        ranks.append(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True))
    return ranks


def ended(ranks, timeout_s=120):
    """Return what ranks that end say, in their order; those that do not are killed."""
    try:
        return [rank.communicate(timeout=timeout_s) for rank in ranks]
    finally:
        for rank in ranks:
            if rank.poll() is None:
                os.killpg(rank.pid, signal.SIGKILL)


@pytest.mark.full
@pytest.mark.parametrize("places", [(0, 0, 1), (0, 1, 0, 1), (0, 1, 0)])
def test_hosts_end_in_the_bits_of_one(tmp_path, places):
    if hosts.missing():
        pytest.skip(hosts.missing())
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    with hosts.Hosts(2) as two, reserved_port() as port:
        over = ended(started(two, places, script, 5, port))
    one = torchrun.forked(len(places), [script, 5])
    hashes = [re.search("[0-9a-f]{64}", out)[0] for out, err in over] + re.findall("[0-9a-f]{64}", one.out)
    assert len(hashes) == 2 * len(places), (over, one)
    assert len(set(hashes)) == 1, (over, one)


@pytest.mark.full
def test_host_that_is_lost_is_told_by_the_other(tmp_path):
    if hosts.missing():
        pytest.skip(hosts.missing())
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    with hosts.Hosts(2) as two, reserved_port() as port:
        ranks = started(two, (0, 0, 1, 1), script, 100_000, port)
        assert "trains" in ranks[0].stdout.readline(), ended(ranks, 1)
        for rank in ranks[2:]:
            os.killpg(rank.pid, signal.SIGKILL)
        told = ended(ranks)
    for _, err in told[:2]:
        assert re.search("DistBackendError: ranks? 2", err), told
