"""Request to simulate (:class:`Simulations`): a machine, its nodes and link, a config's step."""

import re
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from typing import Any

from psframe.cluster import mpirun
from psframe.errors import UserError
from psframe.predict import command, machine, measure
from psframe.predict.exchange import Node
from psframe.predict.job import ExchangePlan
from psframe.predict.model import Job
from psframe.record import metrics
from psframe.virtual import engines
from psframe.virtual.costs import Costs, Premises
from psframe.virtual.training import Simulation, simulated

STEP_DEVIATION = 0.05  # of steps whose seconds are given: as on a machine without other load
#: sections of a config on which the seconds of a step's computation do not depend
NOT_OF_STEP = ("sync", "collective", "schedule", "fault", "checkpoint", "record")


class Simulations:
    """What a command asks for.

    Parameters
    ----------
    arguments : Namespace
        With those of :func:`psframe.virtual.options.add`, ``ranks`` and ``mpirun``.
    counts : sequence of int
        The numbers that ``ranks`` lists.
    is_checked : bool
        True if the same is trained on real ranks, too: on one node, unless ``nodes`` tells of others.

    Raises
    ------
    UserError
        If an option is wrong, or simulations could not be compared with real ranks that should be.
    """

    def __init__(self, arguments: Namespace, counts: Sequence[int], is_checked: bool = False):
        self.arguments, self.is_checked = arguments, is_checked
        if not arguments.machine:
            raise UserError(f"--machine must name a profile, got none; give one of {', '.join(machine.names())}")
        self.machine = machine.read(arguments.machine)
        self.link = machine.link(arguments.link or self.machine.link)
        if arguments.nodes is not None and not 1 <= arguments.nodes <= min(counts):
            least = min(counts)
            raise UserError(
                f"--nodes must have a rank each, got {arguments.nodes} for {least} rank(s); give 1 to {least}"
            )
        if arguments.step_s is not None and not 0 < arguments.step_s < inf:
            raise UserError(
                f"--step-s must be a number of seconds above 0, got {arguments.step_s:g}; give a worker's step"
            )
        for n in counts:
            _slow(arguments.slow, n)
            _lose(arguments.lose, n)
        if is_checked:
            self._check_is_here()
        self._measured: dict[tuple[str, ...], list[command.Asked]] = {}

    def simulation(self, config: str, overrides: Sequence[str], n: int, repeat: int = 0) -> Simulation:
        """Return the simulation of a config on ``n`` ranks; its step is timed here, unless its seconds are given.

        Each ``repeat`` has another seed.
        """
        arguments, cores = self.arguments, self.machine.cores.value
        nodes = arguments.nodes or (1 if self.is_checked else -(-n // int(cores)))
        here = -(-n // nodes)
        if arguments.step_s:
            compute_s, deviation, tier = _given(arguments.step_s), STEP_DEVIATION, None
        else:
            found = self._found(config, overrides)
            way = found.at(n, per_node=here)
            compute_s, deviation, tier = _modelled(found.job, way), found.job.work.deviation, way.tier
        node_of = [rank * nodes // n for rank in range(n)]
        dies_s, node = _lose(arguments.lose, n), Node(self.machine, here, tier)
        premises = Premises(node_of, compute_s, deviation, node, self.link, arguments.seed + repeat, dies_s)
        of_faults = [*_slow(arguments.slow, n), *(["fault.on_worker_loss=continue"] if dies_s else [])]
        return Simulation(config, [*overrides, *of_faults], premises, arguments.machine)

    def _check_is_here(self) -> None:
        measure.check_is_this(self.machine)
        given = {name: getattr(self.arguments, name) for name in ("step_s", "lose", "slow")}
        if option := next((f"--{name.replace('_', '-')}" for name, value in given.items() if value), None):
            raise UserError(f"--check must simulate what this machine does, got {option}; leave that out")

    def time(self, config: str, overrides: Sequence[str]) -> None:
        """Time a config's step, again if it was; simulations take the mean of the last two times."""
        of_step = _of_step(overrides)
        unasked = {"what_if": None, "check": False, "hosts": None, "per_node": None}
        asked = {**vars(self.arguments), **unasked, "config": config}
        # a step is the same in all modes, and ranks that are simulated have a thread each
        asked["overrides"] = [*of_step, "sync={mode: allreduce}", "fault={}", "train.threads=1"]
        found = command.judged(Namespace(**asked), mpirun.launcher(self.arguments.mpirun))
        self._measured.setdefault((config, *of_step), []).append(found)

    def _found(self, config: str, overrides: Sequence[str]) -> command.Asked:
        """Return what :mod:`psframe.predict` measures of a config, once for all configs that have the same step."""
        key = (config, *_of_step(overrides))
        if key not in self._measured:
            self.time(config, overrides)
        times = self._measured[key]
        return times[-2:][0].mean(times[-1])


def records(asked: Simulation, checks_links: bool = False) -> dict[str, Any]:
    """Return the path of a simulation's folder, and the records of its epochs.

    ``checks_links``: what SimGrid says of its messages, too.
    """
    costs = Costs(asked.premises, keeps=checks_links)
    run = simulated(asked, costs)
    assert run.outputs.run_dir
    path = run.outputs.run_dir.path
    told = engines.compared(costs.between) if checks_links else ""
    outlived = [rank for rank in asked.premises.dies_s if costs.ranks.ranks[rank].lives]
    return {"run": str(path), "records": metrics.read(path), "links": told, "outlived": outlived}


def _of_step(overrides: Sequence[str]) -> list[str]:
    return [key for key in overrides if re.split(r"[.=]", key, maxsplit=1)[0] not in NOT_OF_STEP]


def _modelled(job: Job, way: ExchangePlan) -> Callable[[int, int], float]:
    """Return the seconds of a core; how ranks share it is for :class:`psframe.virtual.cores.Cores`."""
    return lambda samples, batch: job.compute_s(way, samples) / job.turns(way)


def _given(step_s: float) -> Callable[[int, int], float]:
    """Return the seconds of so many samples, of a step that takes ``step_s`` with a full batch."""
    return lambda samples, batch: step_s * samples / batch


def _pair(text: str, n: int) -> tuple[int, float]:
    """Return what ``RANK:NUMBER`` names, one of ``n`` ranks and a number above 0; (-1, 0) of anything else."""
    rank, _, number = text.partition(":")
    with suppress(ValueError):
        if 0 <= int(rank) < n and 0 < float(number) < inf:
            return int(rank), float(number)
    return -1, 0.0


def _slow(text: str | None, n: int) -> list[str]:
    """Return the config's keys of a slow rank."""
    if text is None:
        return []
    number, factor = _pair(text, n)
    if not factor:
        raise UserError(
            f"--slow must name one of {n} rank(s) and the step times that it loses, got {text!r}; give {n - 1}:4.0, say"
        )
    return [f"fault.slow_rank={number}", f"fault.slow_steps={factor}"]


def _lose(text: str | None, n: int) -> dict[int, float]:
    """Return when ranks die, by rank."""
    found: dict[int, float] = {}
    for one in text.split(",") if text else ():
        number, at_s = _pair(one, n)
        if not at_s or number in found:
            raise UserError(
                f"--lose must name ranks of {n}, each once, and the seconds after which it dies, got {one!r}; give "
                f"{n - 1}:2.5, say"
            )
        found[number] = at_s
    if len(found) == n:
        raise UserError(f"--lose must leave a rank, got all {n}; leave one of them out")
    return found
