"""A sync mode with all its parts and no network: gradients are whatever a test writes into the arena."""

import numpy as np

from psframe import collectives, sync
from psframe.config import registry
from psframe.memory.arena import ONE_COPY, Layout
from psframe.nn.base import Param
from psframe.optim import SGD, Updater
from psframe.sync.binding import bind, roles
from psframe.sync.sampler import Sampler
from psframe.sync.tally import Tally
from psframe.train.assembly.allocate import build_measured


class Rig:
    """The parts of a mode on this rank, as ``psframe.train.assembly.assemble`` puts them together.

    Parameters
    ----------
    spec : dict
        The section ``sync`` of a config.
    form : (str, dict)
        A collective and its keys.
    shapes : sequence of tuple
        Of the tensors.
    n_steps, batch_size : int
        Of an epoch.
    start : ndarray
        The parameters at the beginning, by default from -1 to 1.
    keeping : Keeping
    """

    def __init__(self, cluster, spec, form=("shared", {}), shapes=((40,),), **keys):
        self.cluster, self.reproducible = cluster, keys.get("reproducible", "fixed_workers")
        self.mode = sync.make(registry.bind("sync", sync.TABLE, spec, "mode"))
        self.team, self.group = roles(cluster, self.mode.traits)
        self.mode.check(self.team)
        self.layout = Layout({str(i): Param(shape, tuple(range(len(shape)))) for i, shape in enumerate(shapes)})
        n_steps, batch_size = keys.get("n_steps", 4), keys.get("batch_size", 2)
        self.sampler = Sampler(n_steps * batch_size * self.team.n_workers, self.team.n_workers, batch_size, 0)
        self.optimizer = keys.get("optimizer") or SGD(lr=0.1, momentum=0.9, weight_decay=0.01)
        self.choice = registry.bind("collective", collectives.TABLE, {"name": form[0], **form[1]})
        self.keeping = keys.get("keeping", ONE_COPY)
        build_measured(cluster, self._make)
        begin = keys.get("start", np.linspace(-1, 1, self.layout.size, dtype=np.float32))
        if cluster.rank == 0:
            self.arena.params[:] = begin
        elif not self.arena.shared or (self.group.leads and cluster.node > 0):
            self.arena.params[:] = np.nan  # open() must bring them
        self.update = Updater(self.optimizer, self.arena)
        self.mode.open(self.update)
        if self.arena.params_bf16 is not None and (self.group.leads or not self.arena.shared):
            self.arena.refresh_bf16()
        cluster.barrier()
        self.promised = dict(self.allocator.bytes_by_place)
        self.collective.traffic.clear()

    def _make(self, allocator):
        self.allocator = allocator
        self.tally = Tally()
        on = (self.cluster, self.team, self.group, self.layout, self.optimizer, self.sampler, allocator)
        self.collective, self.arena = bind(
            self.mode, self.choice, self.reproducible, *on, tally=self.tally, keeping=self.keeping
        )

    def epoch(self, gradient, lr=0.1, first=0):
        """Take what is left of an epoch.

        ``gradient(worker, step, params)`` gives a sum over samples, and this rank writes it.
        """
        for step, worker in self.mode.turns(self.sampler.n_steps):
            if worker is not None:
                self.arena.grads[:] = gradient(worker, step, self.arena.params)
            self.mode.step(self.sampler.samples_in(step), lr, first + step + 1)
        self.mode.drain()
        self.sampler.epoch += 1
        assert dict(self.allocator.bytes_by_place) == self.promised, "a step allocated memory"

    def close(self):
        self.cluster.barrier()
        self.mode.close()
