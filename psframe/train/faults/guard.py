"""Protection of the parameters against faults (:class:`Guard`): drops non-finite steps, finds and repairs damage."""

from collections.abc import Callable, Sequence
from functools import partial
from math import isfinite, nan
from typing import Any

import numpy as np

from psframe.cluster.cluster import Cluster
from psframe.cluster.flight.recorder import RECORDER
from psframe.cluster.heartbeat import ARRIVED, COMPUTING, IDLE
from psframe.cluster.roles import Team
from psframe.cluster.stragglers import StragglerMonitor
from psframe.collectives.base import BaseCollective
from psframe.config.schema import Config, Fault
from psframe.errors import UserError
from psframe.memory.arena import Arena, Keeping
from psframe.memory.checksums import Checksums
from psframe.nn.base import LayerHook
from psframe.optim import Updater
from psframe.record.clock import CLOCK
from psframe.record.log import LOG
from psframe.sync.tally import Tally
from psframe.sync.traits import Traits
from psframe.train.compute.local import Work
from psframe.train.faults.injection import Flip, Rollback, Slow
from psframe.train.faults.replicas import Replicas

MAX_SKIPPED = 100  # steps in a row: training does not recover after so many


def keeping(fault: Fault, traits: Traits) -> Keeping:
    """Return what the arena keeps of replaced parameters, to drop a step or to survive a lost rank."""
    drops_unsound = traits.drops == "steps"
    outlives = fault.on_worker_loss == "continue"
    keeps_two = (drops_unsound and fault.on_nan != "stop") or outlives
    return Keeping(2 if keeps_two else 1, drops_unsound, outlives_server=outlives)


def checksums(fault: Fault, cluster: Cluster, team: Team, arena: Arena) -> Checksums | None:
    """Return checksums of the memory that this rank alone writes; None if not requested, or if others write it, too."""
    # with several nodes, another node's writes would go unnoticed until the next check
    shared_on_one_node = arena.shared and cluster.n_nodes == 1
    owns = (
        shared_on_one_node
        or cluster.n_ranks == 1
        or (team.server is not None and cluster.rank == 0 and not arena.shared)
    )
    return Checksums(arena) if fault.check_every and owns else None


class Guard:
    """Check of every step of a run on one rank, as ``fault`` in the config asks.

    Parameters
    ----------
    cluster : Cluster
        All ranks.

    Attributes
    ----------
    skipped : list of dict
        ``step`` and ``ranks`` of each dropped step since the last :meth:`take`.
    repaired : list of dict
        ``step`` and ``rank`` of each repair since then.
    """

    def __init__(
        self,
        config: Config,
        cluster: Cluster,
        team: Team,
        traits: Traits,
        tally: Tally,
        collective: BaseCollective,
        updater: Updater,
        work: Work,
    ):
        self.work, fault = work, config.fault
        self.slow = Slow(fault, cluster.rendezvous.name(cluster.rank), config.train.seed)
        self.fault, self.cluster, self.team, self.tally = fault, cluster, team, tally
        self.collective, self.updater, self.arena = collective, updater, updater.arena
        self.flip = Flip(fault, cluster.rank, cluster.n_ranks, self.arena)
        self.replicas = Replicas(cluster, team, self.arena)
        rendezvous, waits = cluster.rendezvous, traits.in_step and not config.parallel.is_cut
        late_s = fault.late_s if waits else 0.0
        keep = partial(RECORDER.incident, "late")
        self.watch = StragglerMonitor(cluster.pulse, rendezvous.names, late_s, rendezvous.late, keep)
        self.skipped: list[dict[str, Any]] = []
        self.repaired: list[dict[str, Any]] = []
        self.in_a_row, self.loss = 0, 0.0

    def __enter__(self) -> None:
        self.watch.start()

    def __exit__(self, *_: object) -> None:
        self.watch.stop()

    def reset(self) -> None:
        """Reset checksums and counts after parameters were written outside of a step. All ranks must call."""
        self.arena.nonfinite, self.in_a_row = False, 0
        if self.updater.checksums:
            self.updater.checksums.forget()
        self.collective.forget()

    def begin(self, epoch: int, step: int) -> None:
        """Begin an epoch at ``step``; both count from 1, steps over the run."""
        self.watch.epoch = epoch
        self.cluster.pulse.tell(COMPUTING, step)

    def compute_guarded(
        self,
        step: int,
        losses: np.ndarray,
        gradients: Callable[..., float] | None = None,
        hook: LayerHook | None = None,
    ) -> float:
        """Compute this rank's part of a step by ``gradients``, None on a server; return the seconds of loading.

        Losses are added to ``losses`` (n,). ``hook`` is called during backward, except in a step in which gradients
        are checked or flipped before their exchange. All ranks must call.
        """
        check_every, flips = self.fault.check_every, self.flip.at("gradients", step=step)
        checks = bool(check_every) and step % check_every == 0
        is_held = checks or flips
        began, waited_s = CLOCK.now(), self.work.waited_s
        loading_s = gradients(hook=None if is_held else hook) if gradients else 0.0
        if gradients:
            self.slow.pause(CLOCK.now() - began - loading_s - (self.work.waited_s - waited_s))
        if checks and self._check(step) and gradients:
            losses[:] = 0
            gradients()
        self.loss = float(losses.sum())
        if flips:
            self.flip.apply()
        if not isfinite(self.loss) and is_held and self.arena.drops_unsound:
            self.arena.grads[0] = nan  # the exchange spreads it to all ranks
        return loading_s

    def mark_arrival(self, step: int) -> float:
        """Note this rank's arrival at the exchange of a step; return the time, by ``CLOCK``."""
        self.cluster.pulse.tell(ARRIVED, step)
        return CLOCK.now()

    def finish_step(self, step: int) -> bool:
        """Return True if a step was dropped, once its exchange is over. All ranks must call.

        Raises
        ------
        AgreedError
            On every rank, if training must stop; ``injection.Rollback`` if it may go back to a checkpoint.
        """
        dropped = self.arena.nonfinite
        if dropped:
            self._blame(step)
        else:
            self.in_a_row = 0
        if self.flip.at("params", "state", step=step):
            self.flip.apply()
        self.cluster.pulse.tell(COMPUTING, step + 1)
        return dropped or (self.fault.on_nan == "skip" and not isfinite(self.loss))

    def end(self, step: int) -> None:
        """Check parameters and state after the last step of an epoch. All ranks must call."""
        self.cluster.pulse.tell(IDLE)
        if self.fault.check_every:
            self._check(step)
            sound_by_rank = self.cluster.gather_in_time(self.updater.checksums is None or self.updater.checksums.hold())
            damaged = [rank for rank, sound in enumerate(sound_by_rank or []) if not sound]
            if damaged := self.cluster.run_on_root_in_time(lambda: damaged):
                raise Rollback(tuple(damaged), step, self._changed(damaged, f"after step {step}"))

    def take(self) -> dict[str, Any]:
        """Return the noted faults, and clear them."""
        faults = {
            "skipped": [*self.skipped, *self.tally.skipped],
            "repaired": list(self.repaired),
            "late": self.watch.take(),
        }
        for noted in (self.skipped, self.repaired):
            noted.clear()
        return faults

    def _check(self, step: int) -> bool:
        """Compare and repair the replicas; return True if this rank must compute anew. All ranks must call."""
        self.cluster.pulse.tell(ARRIVED, step)
        damaged = self.replicas.check()
        self.repaired += [{"rank": rank, "step": step} for rank in damaged]
        if damaged and self.cluster.rank == 0:
            LOG.warning(f"the parameters or optimizer state of {_named(damaged)} were not those of the others in step "
                       f"{step}, and were repaired")  # fmt: skip
        self.cluster.pulse.tell(COMPUTING, step)
        # samples that met those of a damaged rank were computed with its damage
        return bool(damaged) if self.work.ranks_meet else self.replicas.is_mine(damaged)

    def _blame(self, step: int) -> None:
        """Find the ranks at fault for a non-finite step; skip, stop or roll back as configured. All ranks must call."""
        workers = self.collective.nonfinite_workers(self.arena.grads)
        if not isfinite(self.loss) and self.team.worker is not None:
            workers = [*workers, self.team.worker]
        findings = self.cluster.gather_in_time(
            ([self.team.workers[worker] for worker in workers], self.updater.take_damage())
        )
        verdict = self.cluster.run_on_root_in_time(partial(self._verdict, findings or [], step))
        ranks = tuple(verdict["ranks"])
        if verdict["back"]:
            raise Rollback(ranks, step, verdict["reason"])
        self.arena.nonfinite = False
        self.collective.forget()
        self.skipped.append({"step": step, "ranks": list(ranks)})
        self.in_a_row += 1

    def _verdict(self, every: Sequence[tuple[list[int], bool]], step: int) -> dict[str, Any]:
        """Return the action to perform, on rank 0; raise UserError to stop."""
        damaged = [rank for rank, (_, is_damaged) in enumerate(every) if is_damaged]
        if damaged:
            return {
                "ranks": damaged,
                "back": True,
                "reason": self._changed(damaged, f"between steps {step - 1} and {step}"),
            }
        ranks = sorted({rank for blamed, _ in every for rank in blamed})
        whose = f"those of {_named(ranks)} were not" if ranks else "each worker's were, and their sum was not"
        reason = f"gradients must be finite, {whose} in step {step} (epoch {self.watch.epoch})"
        if self.fault.on_nan == "stop":
            raise UserError(
                f"{reason}; lower optimizer.lr, or drop such steps with fault.on_nan=skip, and continue with "
                "checkpoint.resume=auto"
            )
        if self.fault.on_nan == "skip" and self.in_a_row + 1 >= MAX_SKIPPED:
            raise UserError(f"{reason}, nor in {self.in_a_row} steps before it, all dropped; lower optimizer.lr")
        return {"ranks": ranks, "back": self.fault.on_nan == "rollback", "reason": reason}

    def _changed(self, damaged: Sequence[int], when: str) -> str:
        what = "shared parameters or optimizer state" if self.arena.shared else "parameters or optimizer state"
        where = f"in the segment of {_named(damaged)}" if self.arena.shared else f"of {_named(damaged)}"
        return f"the {what} {where} must stay as they were written, but changed {when}"


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
