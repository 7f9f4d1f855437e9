"""Training on virtual ranks (:func:`simulated`): the code of real ranks, in the time of another machine."""

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from psframe.cluster.cluster import Cluster
from psframe.cluster.gates import PeerLost
from psframe.cluster.joining import join
from psframe.cluster.pool import Pool
from psframe.errors import UserError
from psframe.record.clock import CLOCK
from psframe.sync.server_mode import ServerMode
from psframe.train import loop, recovery, session
from psframe.train.elastic.resize import Dismissed, dismiss
from psframe.train.epoch import traffics
from psframe.train.plan import plan as planning
from psframe.train.run import Run
from psframe.virtual.costs import Costs, Premises
from psframe.virtual.job import Job
from psframe.virtual.site import site, world
from psframe.virtual.sparing import Sparing
from psframe.virtual.steps import TakingTime

#: keys of a config that hold for real ranks only: threads that watch them, samples of their resources, spares, cores
REAL_ONLY = ("fault.late_s=0", "record.usage=false", "train.threads=1", "elastic.ranks=null", "affinity=none")
#: a simulation begins anew, and takes no seconds for checkpoints, whose writer has a thread of the real time
ANEW = ("checkpoint.resume=none", "checkpoint.every_seconds=0")


@dataclass(frozen=True)
class Simulation:
    """A job to simulate.

    Attributes
    ----------
    config : str
        Path of a YAML file.
    overrides : sequence of str
    premises : Premises
    machine : str
        Name of the machine, for the record.
    """

    config: str
    overrides: Sequence[str]
    premises: Premises
    machine: str


def simulated(asked: Simulation, costs: Costs) -> Run:
    """Train a config on virtual ranks, which print nothing; return the run of who leads. ``costs`` are of its premises.

    Raises
    ------
    UserError
        If these ranks cannot run the config, or cannot go on without those that die.
    """
    ranks = costs.ranks
    every = world(ranks, Job(asked.premises.node_of, site, costs))
    sparing, led = Sparing(), list[Run]()
    with CLOCK.virtual(lambda: ranks.now_s, ranks.sleep):
        try:
            ranks.run(lambda rank: _on_rank(asked, costs, every[rank], sparing, led))
        except PeerLost as lost:
            raise UserError(
                f"ranks must be able to go on without those that die, but {lost}; let others die, or at another time, "
                "or take another sync.mode, or --nodes 1: a store in MPI windows outlives no rank"
            ) from None
    return led[0]  # rank 0 may have died behind it, as it told of the end


def _on_rank(asked: Simulation, costs: Costs, comm: Any, sparing: Sparing, led: list[Run]) -> Run:
    cluster = join(comm)
    number = costs.ranks.current.number

    def prepared(run: Run) -> None:
        gc.freeze()  # what this rank has made, which each collection of later ones would look through
        run.labels["simulated"] = asked.machine
        if run.cluster.rank == 0:
            led[:] = [run]
        if isinstance(run.sync, ServerMode):
            sparing.post_in_turn(run, run.sync)
        run.work = TakingTime(costs, number, run, sparing)  # type: ignore
        node, together = asked.premises.node, run.sync.traits.in_step or run.team.worker is not None
        counted = traffics(run)
        if not any(traffic is run.updater.traffic for traffic in counted):  # of parameters that are this rank's alone
            counted.append(run.updater.traffic)
        costs.meter(number, counted, min(node.ranks, int(node.machine.cores.value)) if together else 1)

    return trained(cluster, asked.config, [*asked.overrides, *ANEW], prepared, sparing.begin)


def trained(
    cluster: Cluster,
    config: str,
    overrides: Sequence[str],
    prepare: Callable[[Run], None] = lambda run: None,
    built: Callable[[Run], None] = lambda run: None,
) -> Run:
    """Train a config to its end, also without ranks that die, and by way of checkpoints that it goes back to.

    Return the run as it ends. All ranks must call.

    Parameters
    ----------
    prepare : callable
        Is given the run before it trains, and each time that it goes on in another way.
    built : callable
        Is given the run before it computes at all.

    Raises
    ------
    AgreedError
        On every rank, if the run is impossible.
    """
    plan = planning.make(cluster, config, [*overrides, *REAL_ONLY])
    pool = Pool(cluster, survives=plan.config.fault.on_worker_loss == "continue")
    run = session.ready(cluster, plan, quiet=True, built=built)
    succession = session.successive(run, plan, pool, quiet=True, is_open=True)

    def train(run: Run) -> None:
        prepare(run)
        if not run.progress.stop:
            loop.train(run)
        run.cluster.run_on_root_in_time(partial(session.finish, run))

    try:
        run, _ = recovery.trained(run, plan, train, pool, succession)
    except Dismissed:  # another rank has told of the end, before one died that should have
        return run
    dismiss(pool)
    return run
