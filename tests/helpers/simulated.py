"""A machine whose steps take the seconds that it is told, for searches without ranks (:class:`Simulated`)."""

from collections import Counter
from dataclasses import dataclass, field
from random import Random

from psframe.config.tuned import BATCH
from psframe.errors import UserError


@dataclass
class Simulated:
    """Answers of ranks, with a clock of its own.

    Parameters
    ----------
    step_s : callable
        Seconds of a step of a way, without noise.
    noise : float
        Standard deviation of the logarithm of a stretch's seconds.
    neighbour : bool
        True for another program that takes half of the machine for half of the time, in spells of seconds.
    """

    step_s: object
    noise: float = 0.02
    neighbour: bool = False
    seed: int = 0
    n_workers: object = lambda way: way.n_ranks
    refused: dict = field(default_factory=dict)
    origin: dict = field(default_factory=dict)

    def __post_init__(self):
        self.random, self.now_s = Random(self.seed), 0.0
        self.steps, self.dropped = Counter(), []

    def ask(self, what, way, *given):
        return getattr(self, what)(way, *given)

    def look(self, way):
        if way in self.refused:
            raise UserError(self.refused[way])
        n_workers = self.n_workers(way)
        return {
            "machine": "a machine", "mpi": "an MPI", "n_nodes": 1, "cores": 8, "n_numa": 1, "tiers": ["ddr"],
            "n_workers": n_workers, "batch_size": 32, "global_batch": 32 * n_workers, "n_train": 60000,
            "same_each_step": True, "own_statistics": False, "set_keys": [], "key": "k", "metrics": ["accuracy"],
            "defaults": {"shared": {"reducers": "cores"}, "buffer": {"bucket_bytes": 1 << 20}, "hierarchical": {}},
            "config": {
                "name": "simulated", "train": {"threads": "auto", "reproducible": "fixed_workers"},
                "sync": {"mode": "sync_ps", "server": "dedicated", "servers": 1},
                "collective": {"name": "shared", "reducers": "cores"}, "affinity": "numa",
                "parallel": {"pipeline": 1, "micro_batches": "auto", "schedule": "1f1b"},
                "placement": {},
            },
            **self.origin,
        }  # fmt: skip

    def workers(self, way, *ways):
        from psframe.tune.way import Way

        made = [Way(n, tuple(tuple(o.split("=", 1)) for o in overrides)) for overrides, n in ways]
        return {"found": [(self.n_workers(one), True) for one in made]}

    def train(self, way, n_steps):
        if way in self.refused:
            raise UserError(self.refused[way])
        whole = self.n_workers(way) * (way.batch_size or int(dict(way.settings).get(BATCH, 32)))
        seconds = n_steps * self.step_s(way) * 2 ** self.random.gauss(0, self.noise * 1.44)
        if self.neighbour and int(self.now_s / 3) % 2:
            seconds *= self.random.uniform(1.3, 2.0)
        self.now_s += seconds
        self.steps[way] += n_steps
        return {"samples": n_steps * whole, "seconds": seconds, "phases": {"compute": seconds, "wait": 0.0}}

    def drop(self, ways):
        self.dropped += ways
