"""A worker has died: the other ranks go on without it, in the processes that they are.

They leave whatever they were waiting for, form a smaller job (User-Level Failure Mitigation: Bland et al. 2013), and
make every part of the run anew, from what rank 0 has of the last step that was taken whole. The rest of the epoch is
dealt out among those that are left; the data stay where they are.
"""

import gc
import sys
from collections.abc import Callable
from time import perf_counter

import numpy as np
from mpi4py import MPI

from psframe import assemble, comms
from psframe.cluster import Cluster, join
from psframe.job import Run
from psframe.memory.gates import PeerLost
from psframe.memory.link import LeaderEnded
from psframe.plan import Plan, regrouped
from psframe.record.checkpoint import Saved

#: what a rank meets when another one is lost
LOSSES = (PeerLost, LeaderEnded, MPI.Exception)


def go_on(run: Run, plan: Plan, lost: BaseException) -> Run:
    """Return the run as those that are left can continue it. All of them must call, each with what it has met.

    Raises
    ------
    PeerLost, LeaderEnded, MPI.Exception
        What it was given, where nobody can go on; PeerLost where it was rank 0 that died.
    """
    if not _can(run, lost):
        raise lost
    began = perf_counter()
    old, world = run.cluster, run.cluster.world
    ranks, saved = old.n_ranks, None  # what there was before the first of several losses
    while True:
        try:
            comms.revoke()
            world = world.Shrink()
            ranks_left = _left(world, old)
            if saved is None:
                saved = _salvage(run, world)
                held = assemble.release(run)
            cluster = join(world)
            made = assemble.again(regrouped(plan, cluster), cluster, run, held, saved)
            break
        except LOSSES as again:
            import traceback; traceback.print_exc()  # DEBUG
            if not isinstance(again, PeerLost | LeaderEnded) and not comms.is_loss(again):
                raise
            if isinstance(again, PeerLost) and 0 in again.ranks:
                raise
    gone = sorted(set(range(ranks)) - set(ranks_left))
    _tell(made, gone, perf_counter() - began)
    old.close()
    return made


def _can(run: Run, lost: BaseException) -> bool:
    """Whether this is a loss that a run can do without: of a rank that has died, not of one that is stuck."""
    if run.config.fault.on_worker_loss != "continue" or not comms.tolerant() or not run.sync.survives:
        return False
    if run.sync.store and not run.sync.store.nearby:
        return False  # Open MPI's one-sided windows do not outlive a rank
    return lost.dead if isinstance(lost, PeerLost) else isinstance(lost, LeaderEnded) or comms.is_loss(lost)


def _left(world: MPI.Comm, old: Cluster) -> list[int]:
    """Return the numbers that the ranks of ``world`` had; PeerLost where rank 0's is not among them."""
    left = world.allgather(old.rank)
    if 0 not in left:
        raise PeerLost(
            "rank 0 has died, which keeps the parameters and writes the checkpoints; the others cannot go on without "
            "it",
            (0,),
            world.rank == 0,
        )
    return left


def _salvage(run: Run, world: MPI.Comm) -> Saved:
    """Return what to go on from, which rank 0 has; forget, on every rank, the steps that do not count."""
    saved, taken = None, 0
    if run.cluster.rank == 0:
        inside = run.parts and not run.parts[-1].whole
        now = run.sampler.cursor if run.parts and not run.concluded else 0
        done, params, rows = run.sync.salvaged() if inside else (now, run.network.arena.params, run.sync.state())
        taken = len(run.parts[-1].losses) if run.parts else 0
        if inside:
            taken = -(-(done - run.sampler.cursor) // (run.sampler.n_workers * run.sampler.batch_size))
        state = np.array(rows, np.float32).reshape(-1, len(params))
        step = run.step + (taken if inside else 0)
        saved = Saved(params.copy(), state, run.epoch, step, run.network.arena.layout.describe(), done)
    told = (saved.epoch, saved.step, saved.cursor, taken, len(run.parts), run.concluded) if saved else None
    epoch, step, cursor, taken, n_parts, concluded = world.bcast(told)
    del run.parts[0 if concluded else n_parts :]
    if run.parts:
        _cut(run, taken)
    run.concluded = False
    nothing = np.empty(0, np.float32)
    return saved or Saved(nothing, nothing, epoch, step, "", cursor)


def _cut(run: Run, n_steps: int) -> None:
    """Forget what this rank did in the last part of the epoch behind its first so many steps."""
    seen, now = run.parts[-1], perf_counter()
    seen.cut(n_steps)
    if run.sync.lockstep:
        seen.cut_turns(n_steps, now)
    if not seen.whole:
        seen.ended, seen.whole = now, True


def _tell(run: Run, gone: list[int], pause_s: float) -> None:
    if run.cluster.rank == 0:
        who = f"rank {gone[0]} has" if len(gone) == 1 else f"ranks {', '.join(map(str, gone))} have"
        run.lost.append({"ranks": gone, "step": run.step + 1, "samples_done": run.sampler.cursor, "pause_s": pause_s})
        print(
            f"psframe: {who} died in epoch {run.epoch + 1}; {run.labels['n_workers']} worker(s) go on after "
            f"{run.sampler.cursor:,} samples of it, {pause_s:.2f} s later",
            file=sys.stderr,
            flush=True,
        )


def trained(run: Run, plan: Plan, train: Callable[[Run], None]) -> Run:
    """Train, and go on as long as rank 0 and a worker are left; return the run as it ended. All ranks must call."""
    while True:
        try:
            train(run)
            return run
        except LOSSES as lost:
            run = go_on(run, plan, lost)
            gc.collect()  # the memory of the run before, which nobody has any more
