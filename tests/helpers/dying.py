"""Train, but kill a rank at its BATCH-th batch: ``python -m tests.helpers.dying RANK BATCH CONFIG ...``."""

import os
import signal
import sys

from mpi4py import MPI

from psframe.cluster.command import guarded
from psframe.train import command
from psframe.train.data.batches import Batches

rank, left = map(int, sys.argv[1:3])
load = Batches.load


def until_then(batches, split, samples, *more):
    global left
    left -= split == "train" and len(more) > 0  # with an epoch; without one, it is the sample that layers compile with
    if MPI.COMM_WORLD.rank == rank and not left:
        os.kill(os.getpid(), signal.SIGKILL)
    return load(batches, split, samples, *more)


if __name__ == "__main__":
    Batches.load = until_then
    sys.exit(guarded(command.main, sys.argv[3:]))
