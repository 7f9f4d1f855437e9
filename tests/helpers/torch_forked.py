"""Ranks of PyTorch that are forked from one process, which has imported it: less than half of torchrun's CPU time.

    python -m tests.helpers.torch_forked N SCRIPT [ARGUMENT ...]
    python -m tests.helpers.torch_forked N -m MODULE [ARGUMENT ...]

Ranks find the environment and the store that torchrun gives them, and all are ended as soon as one fails.
"""

import gc
import importlib
import os
import runpy
import signal
import socket
import sys
import time
from pathlib import Path

#: what ranks would import, some of it within PyTorch's first calls
IMPORTED = ("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor", "psframe.torch")
GOING_S, LOOK_S = 5, 0.02


def main(n: int) -> None:
    """Return in each rank; end this process when all have ended, with 1 if one of them has failed."""
    for name in IMPORTED:
        importlib.import_module(name)
    listening = socket.create_server(("127.0.0.1", 0))
    host, port = listening.getsockname()
    os.environ |= {"MASTER_ADDR": host, "MASTER_PORT": str(port)}
    os.environ |= {"WORLD_SIZE": str(n), "LOCAL_WORLD_SIZE": str(n), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    gc.freeze()  # ranks do not look through what has been imported, which would copy it
    ranks = set()
    for rank in range(n):
        pid = os.fork()
        if pid == 0:
            listening.close()
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            return
        ranks.add(pid)
    from torch.distributed import TCPStore

    own = {"is_master": True, "wait_for_workers": False, "master_listen_fd": listening.detach()}
    store = TCPStore(host, port, **own)  # its threads, which a fork would not have, begin here
    status = _wait(ranks)
    del store
    sys.exit(status)


def _wait(ranks: set[int]) -> int:
    """Wait for all ranks, or for the first that fails, with which the others are ended."""
    while ranks:
        pid, status = os.wait()
        ranks.remove(pid)
        if status:
            break
    else:
        return 0
    for sign, patience_s in ((signal.SIGTERM, GOING_S), (signal.SIGKILL, GOING_S)):
        for pid in ranks:
            os.kill(pid, sign)
        until = time.monotonic() + patience_s
        while ranks and time.monotonic() < until:
            ranks -= {os.waitpid(pid, os.WNOHANG)[0] for pid in ranks}
            time.sleep(LOOK_S)
    return 1


if __name__ == "__main__":
    main(int(sys.argv[1]))
    if sys.argv[2] == "-m":
        sys.argv[:4] = [sys.argv[3]]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv[:2] = []
        sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
        runpy.run_path(sys.argv[0], run_name="__main__")
