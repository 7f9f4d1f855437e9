"""Judgement of a config without ranks and without MPI (:func:`judge`), by the checks that a run's plan makes.

Left out is what only the ranks or their machine can tell: whether MPI and all ranks are there, the placement of memory
and the room for it, the times by which a network is cut, the folder of runs, and the contents of the data.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from psframe import sync
from psframe.cluster.roles import Roles
from psframe.config.registry import Choice
from psframe.config.schema import Config
from psframe.memory import role_placement
from psframe.nn.network import Network
from psframe.sync.base import Mode
from psframe.sync.binding import by_number
from psframe.train.compute import any_workers
from psframe.train.compute.parallel import grid as grids
from psframe.train.data.dataset import Facts
from psframe.train.plan import checks, combinations, sections
from psframe.train.plan.combinations import Combination
from psframe.train.plan.optimizer_trial import check as check_optimizer


@dataclass(frozen=True)
class Judged:
    """A config that passed the checks.

    Attributes
    ----------
    choices : dict of str to Choice
        Chosen member of each family, by its config key.
    n_params : int
        Numbers in the network's trained tensors.
    exchanges : bool
        True if the mode uses the collective.
    roles : Roles or None
        Ranks that exchange gradients; None if their number is not known.
    unused : list of str
        Keys that the chosen members do not use.
    """

    config: Config
    choices: dict[str, Choice]
    facts: Facts
    n_params: int
    exchanges: bool
    roles: Roles | None
    unused: list[str]


def judge(path: str, overrides: Sequence[str], n_ranks: int | None = None) -> Judged:
    """Read a config, look at its dataset, build its network without memory, and check all that needs no ranks.

    Parameters
    ----------
    n_ranks : int, optional
        Ranks of the job, on one node. Without it, what depends on their number is not checked, and several ranks are
        assumed.

    Raises
    ------
    UserError
        For the first mistake.
    """
    resolved, unused = sections.resolve(path, overrides, "shared")
    config = msgspec.convert(resolved, Config)
    checks.check_record(resolved["record"], rank=0)
    choices = {section: sections.choice(resolved, section) for section in sections.TABLES}
    facts = Facts.of(choices["dataset"]())
    mode: Mode = sync.make(choices["sync"])
    if n_ranks is not None:
        grids.check(config.parallel, n_ranks)
    alone = n_ranks == config.parallel.pipeline * config.parallel.model
    combination = Combination(choices["sync"].name, mode.traits, config, choices["collective"], alone=alone)
    combinations.check(combination)
    roles = None if n_ranks is None else _roles(config, mode, facts, n_ranks)
    checks.check_fault(
        config.fault, roles and (tuple(range(n_ranks or 0)) if config.parallel.is_cut else roles.workers)
    )
    check_optimizer(choices["optimizer"], config.train.reproducible)
    any_workers.check(config.train, roles.n_workers if roles else 1)
    for place in sections.PLACES.values():
        role_placement.made(choices[place])
    network: Network = sections.network(choices["model"], facts, config.parallel)
    if network.whole.statistic:
        combinations.check(replace(combination, statistic=network.whole.statistic))
    sections.check_cut(choices["model"], facts, config.parallel)
    unused = checks.all_unused(unused, mode.traits, config.train)
    return Judged(config, choices, facts, network.whole.n_params, mode.traits.exchanges, roles, unused)


def _roles(config: Config, mode: Mode, facts: Facts, n_ranks: int) -> Roles:
    """Return the roles of the replicas of a part of the network; UserError if they cannot run the config."""
    roles = by_number((n_ranks // (config.parallel.pipeline * config.parallel.model),), mode.traits)
    checks.check_size(roles.n_workers, facts)
    if roles.n_ranks > 1:
        mode.check(roles)
    return roles
