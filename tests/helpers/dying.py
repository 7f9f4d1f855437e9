"""Train, but kill a rank at its BATCH-th batch: ``python -m tests.helpers.dying RANK BATCH CONFIG ...``."""

import os
import signal
import sys

from mpi4py import MPI

from psframe.cluster.command import guarded
from psframe.train import command
from psframe.train.compute import local

rank, left = map(int, sys.argv[1:3])
gradients = local.Work.gradients


def until_then(*args, **keys):
    global left
    left -= 1
    if MPI.COMM_WORLD.rank == rank and not left:
        os.kill(os.getpid(), signal.SIGKILL)
    return gradients(*args, **keys)


if __name__ == "__main__":
    local.Work.gradients = until_then
    sys.exit(guarded(command.main, sys.argv[3:]))
