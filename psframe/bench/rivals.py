"""Rivals on the same run: PyTorch's :class:`DDP`, :class:`Horovod`, and a server in plain mpi4py (:class:`ByHand`)."""

import os
import socket
import warnings
from datetime import timedelta
from typing import Any

import numpy as np

from psframe.bench.rival import Rival
from psframe.errors import UserError, reason
from psframe.train.loop import Run

CONNECT_S, EXCHANGE_S = 60, 600  # timeouts in DDP


class DDP(Rival):
    """PyTorch's DistributedDataParallel over gloo (Li et al. 2020)."""

    store: Any

    def __init__(self, run: Run, memory_format: str):
        super().__init__(run, memory_format)
        if self.comm.size > 1:
            self._connect()
            # it appears for a first layer of one channel, whose memory order is the same in both formats
            warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
            self.module = self.torch.nn.parallel.DistributedDataParallel(self.network)

    def _connect(self) -> None:
        import torch.distributed as dist

        names = set(self.comm.allgather(socket.gethostname()))
        if len(names) == 1:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        address = os.environ.get("MASTER_ADDR") or ("127.0.0.1" if len(names) == 1 else socket.gethostname())
        address, rank, size = self.comm.bcast(address), self.comm.rank, self.comm.size
        port, why = self.comm.bcast(self._listen(address) if rank == 0 else None)
        try:
            if port and rank:
                self.store = dist.TCPStore(address, port, size, timeout=timedelta(seconds=CONNECT_S))
            if port:
                patience = timedelta(seconds=EXCHANGE_S)
                dist.init_process_group("gloo", store=self.store, rank=rank, world_size=size, timeout=patience)
        except RuntimeError as error:
            why = reason(error)
        if why:
            raise UserError(
                f"every rank must reach rank 0 for DDP, got {address!r} ({why[:200]}); set MASTER_ADDR to an address "
                "of rank 0's host and GLOO_SOCKET_IFNAME to its interface"
            )

    def _listen(self, address: str) -> tuple[int, str]:
        """Return the port of rank 0's store, or 0 and the reason why it cannot listen."""
        make, patience = self.torch.distributed.TCPStore, timedelta(seconds=CONNECT_S)
        try:
            self.store = make(address, 0, self.comm.size, True, timeout=patience, wait_for_workers=False)
        except RuntimeError as error:
            return 0, reason(error)
        return self.store.port, ""

    def close(self) -> None:
        if self.comm.size > 1:
            self.torch.distributed.destroy_process_group()


class Horovod(Rival):
    """Horovod's DistributedOptimizer (Sergeev and Del Balso 2018) over the MPI that it was built with."""

    packages = ("torch", "horovod.torch")

    @classmethod
    def missing(cls) -> str:
        why = super().missing()
        if not why:
            import horovod.torch as hvd

            why = "" if hvd.mpi_built() else "horovod was built without MPI"
        return why

    def __init__(self, run: Run, memory_format: str):
        super().__init__(run, memory_format)
        import horovod.torch as hvd

        # it rejects channels_last gradients; activations still are channels_last, as the images are
        self.network.to(memory_format=self.torch.contiguous_format)
        self.hvd = hvd
        hvd.init()
        size = hvd.size()
        if size == self.comm.size:
            self.optimizer = hvd.DistributedOptimizer(self.optimizer, self.network.named_parameters(), op=hvd.Average)
        self.rest()
        if size != self.comm.size:
            raise UserError(
                f"Horovod must be built with the MPI that started these {self.comm.size} ranks, got one that sees "
                f"{size}; build it again here with HOROVOD_WITH_MPI=1"
            )

    def wake(self) -> None:
        self.hvd.init()

    def rest(self) -> None:
        self.hvd.shutdown()  # its thread would poll the other ranks' a thousand times a second


class ByHand(Rival):
    """A parameter server in plain mpi4py: Gather to rank 0, which is a worker too, sum and update there, Bcast."""

    def __init__(self, run: Run, memory_format: str):
        super().__init__(run, memory_format)
        self.sgd: Any = run.updater.optimizer
        params = list(self.network.parameters())
        size, leads = sum(param.numel() for param in params), self.comm.rank == 0
        self.params, self.grads = np.empty(size, np.float32), np.empty(size, np.float32)
        self.received = np.empty((self.comm.size, size), np.float32) if leads else None
        self.mean, self.velocity, self.work = (np.zeros(size if leads else 0, np.float32) for _ in range(3))
        #: each tensor with its views of the two vectors
        self.places = []
        begin = 0
        for param in params:
            part = slice(begin, begin + param.numel())
            views = [self.torch.from_numpy(vector[part]).view(param.shape) for vector in (self.params, self.grads)]
            self.places.append((param, *views))
            begin = part.stop
        self.restore()

    def step(self, loss: Any, n_samples: int, lr: float) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        for param, _, grads in self.places:
            grads.copy_(param.grad)
        self.comm.Gather(self.grads, self.received)
        if self.received is not None:
            np.sum(self.received, axis=0, out=self.mean)
            self.mean /= n_samples
            self._update(lr)
        self.comm.Bcast(self.params)
        self._unflatten()

    def _update(self, lr: float) -> None:
        """Update rank 0's parameters by the mean gradient, as PyTorch's SGD does, without allocating arrays."""
        sgd, gradient, velocity, work = self.sgd, self.mean, self.velocity, self.work
        if sgd.weight_decay:
            np.multiply(self.params, sgd.weight_decay, out=work)
            gradient += work
        if sgd.momentum:
            velocity *= sgd.momentum
            velocity += gradient
            if sgd.nesterov:
                np.multiply(velocity, sgd.momentum, out=work)
                gradient += work
        np.multiply(velocity if sgd.momentum and not sgd.nesterov else gradient, lr, out=work)
        self.params -= work

    def _unflatten(self) -> None:
        with self.torch.no_grad():
            for param, view, _ in self.places:
                param.copy_(view)

    def restore(self) -> None:
        super().restore()
        for param, view, _ in self.places:
            view.copy_(param.detach())
        self.velocity[:] = 0


RIVALS: dict[str, type[Rival]] = {"ddp": DDP, "horovod": Horovod, "mpi4py": ByHand}
