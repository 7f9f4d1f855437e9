"""Models, datasets and collectives of a user that misbehave on one rank, at one step: for tests of what tells of it.

``PSFRAME_FAULT`` is ``KIND:RANK``: loop, lock, raise, a call of MPI that the others do not make, or make with another
size, memory that is eaten up, or SIGKILL in a place.
"""

import os
import signal
import sys
import threading
import time

import numpy as np
from mpi4py import MPI

from psframe.datasets.base import Dataset, held
from psframe.nn.activations import Flatten
from psframe.nn.base import BaseLayer
from psframe.nn.conv import Conv2d
from psframe.nn.dense import Dense

LATER = 20  # calls until the fault
_calls = {"": 0}


def _is_due(kind: str) -> bool:
    """Return True on the rank of the fault, once it has been asked often enough."""
    asked, _, rank = os.environ.get("PSFRAME_FAULT", ":-1").partition(":")
    if asked != kind or MPI.COMM_WORLD.rank != int(rank):
        return False
    _calls[kind] = _calls.get(kind, 0) + 1
    return _calls[kind] > LATER


def loop_for_ever():
    while True:
        time.perf_counter()


def wait_for_a_lock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def eat():
    """Take memory, page by page, until the kernel has none left for this process's cgroup."""
    kept = []
    while True:
        kept.append(np.ones(1 << 20, np.float64))


def _evaluates():
    frame = sys._getframe()
    while frame and frame.f_code.co_name != "evaluate":
        frame = frame.f_back
    return frame is not None


class Faulty(BaseLayer):
    """A layer that passes its input on, or misbehaves."""

    def setup(self, input_shape, index):
        return input_shape

    def forward(self, x, state):
        if _is_due("loop"):
            loop_for_ever()
        if _is_due("lock"):
            wait_for_a_lock()
        if _is_due("raise"):
            raise ValueError("a layer of mine has raised")
        if _is_due("eat"):
            eat()
        if (
            os.environ.get("PSFRAME_FAULT", "").startswith("die-evaluating")
            and _evaluates()
            and _is_due("die-evaluating")
        ):
            die()
        if _is_due("exit"):
            os._exit(3)
        return x

    def backward(self, x, dy, state, need_dx):
        return dy


def model(input_shape, n_classes):
    return [Conv2d(2, 3), Faulty(), Flatten(), Dense(n_classes)]


def dataset(*, samples: int = 240, seed: int = 0):
    """Return noise, unless reading it never ends."""
    asked = os.environ.get("PSFRAME_FAULT", "")
    if asked.startswith("read"):
        loop_for_ever() if asked.startswith("read-loop") else wait_for_a_lock()
    rng = np.random.default_rng(seed)
    images = rng.standard_normal((samples, 1, 6, 6), np.float32)
    labels = np.arange(samples) % 3
    return Dataset(
        shape=(1, 6, 6), dtype="float32", n_classes=3, train=held(images, labels), test=held(images[:30], labels[:30])
    )


class Collective:
    """Sums by MPI, until one rank does something else."""

    def __init__(self, team, size, allocator, reproducible):
        self.team, self.total = team, np.zeros(size, np.float32)

    def broadcast(self, params):
        self.team.comm.Bcast(params)

    def gather_mean(self, grads, n_samples):
        if self.team.worker is None:
            grads[:] = 0
        self.team.comm.Reduce(grads, self.total)
        if self.team.comm.rank == 0:
            self.total /= n_samples
            yield slice(0, len(grads)), self.total

    def allreduce_mean(self, grads, n_samples):
        if _is_due("other-call"):
            self.team.comm.Bcast(grads, 1)
        if _is_due("other-size"):
            self.team.comm.Allreduce(grads[: len(grads) // 2], self.total[: len(grads) // 2])
        if _is_due("die-summing"):
            die()
        if _is_due("collective-lock"):
            wait_for_a_lock()
        self.team.comm.Allreduce(grads, self.total)
        self.total /= n_samples
        yield slice(0, len(grads)), self.total
