"""Change of the ranks that train (:func:`resized`), between two steps: some leave and wait, others join.

The old members drain what is in flight, and rank 0 keeps the state; then all ranks of the job meet, and the new
members build the run anew from that state. Those that are none wait in :meth:`Pool.hear`, with the data in memory and
the layers compiled.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from psframe.cluster.cluster import Cluster
from psframe.cluster.pool import Pool
from psframe.cluster.signals import NUMBERS
from psframe.record.clock import CLOCK
from psframe.record.view import tell
from psframe.train.assembly.again import rebuilt
from psframe.train.elastic.remainder import Remainder, catch_up, hand_over
from psframe.train.plan.plan import Plan
from psframe.train.run import Run

KEEPERS = 4  # members that keep the state while their parts are made anew, until all have it


class Dismissed(Exception):
    """The job has ended while this rank was a spare, or another one's death kept it from hearing so.

    Attributes
    ----------
    number, cause : int and str
        As of ``Stopped``, if the members were stopped inside an epoch; else 0 and "".
    error : str
        That of the members; "" if there was none.
    """

    def __init__(self, number: int, cause: str, error: str):
        super().__init__(error or cause)
        self.number, self.cause, self.error = number, cause, error


def resized(run: Run, plan: Plan, pool: Pool, change: dict[str, Any]) -> Run:
    """Return the run as the new members continue it; on a rank that leaves, once it joins again. All members call.

    Parameters
    ----------
    change : dict
        ``members``, the numbers in the job of the new members, and ``drained`` hosts; the same on all members.
        ``first`` before anything is trained.

    Raises
    ------
    AgreedError
        On every new member, if they cannot train.
    Dismissed
        On a rank that is none of them, when the job ends.
    """
    began, leaves = CLOCK.now(), pool.cluster.rank not in change["members"]
    hand_over(run, leaves)
    run.sync.close()
    before, remainder = len(pool.members), Remainder(run, run.cluster.rank in keepers(run, pool, change))
    if run.cluster is not pool.cluster:
        run.cluster.close()
    run.cluster = cluster = _met(pool, change)
    new_run = continued(run, plan, remainder, partial(_note, before, pool, began) if "first" not in change else None)
    if "first" not in change:
        new_run.outputs.scaling.done(new_run.progress.epoch + 1, new_run.progress.resized[-1])
    elif cluster.rank == 0:
        now, n_spares = len(pool.members), pool.cluster.n_ranks - len(pool.members)
        words = f"{now} of {pool.cluster.n_ranks} ranks train, {n_spares} wait (psframe scale RUN --to N)"
        tell(words, new_run.outputs.view.quiet)
    return new_run


def keepers(run: Run, pool: Pool, change: dict[str, Any]) -> tuple[int, ...]:
    """Return the members that keep the state in a change: rank 0, and the next that train on and could be rank 0."""
    next_ones = [pool.members.index(member) for member in change["members"][1:] if member in pool.members]
    return (0, *next_ones[: KEEPERS - 1]) if pool.survives and run.sync.holds_state else (0,)


def continued(run: Run, plan: Plan, remainder: Remainder, note: Callable[[Run], None] | None = None) -> Run:
    """Return a new run on ``run.cluster`` that continues ``run``, by ``note`` on rank 0. All its ranks must call."""
    begun_at = run.progress.begun_at
    new_run = rebuilt(plan, run.cluster, run, remainder.held, remainder.saved)
    if note and run.cluster.rank == 0:
        note(new_run)
    catch_up(new_run, begun_at)
    outputs = new_run.outputs
    outputs.view.n_steps = new_run.sampler.steps_an_epoch
    if outputs.calls.control:
        outputs.calls.control.n_steps = new_run.sampler.steps_an_epoch
    return new_run


def _met(pool: Pool, change: dict[str, Any]) -> Cluster:
    """Meet all ranks of the job; return the new members' cluster, on a rank that leaves once it is one again."""
    message = pool.hear(change)
    return pool.change(message["members"], message["drained"]) or wait(pool)


def wait(pool: Pool) -> Cluster:
    """Wait as a spare; return the members' cluster once this rank is one of them.

    Raises
    ------
    Dismissed
        When the job ends.
    PeerLost, LeaderEnded, MPI.Exception
        If a rank of the job has died.
    """
    while True:
        with _deaf(pool):
            message = heard(pool)
        if cluster := pool.change(message["members"], message["drained"]):
            return cluster


def heard(pool: Pool, message: Any = None) -> Any:
    """Return rank 0's ``message`` on every rank of the job, which must all call; raise Dismissed if it is the last."""
    message = pool.hear(message)
    if "ended" in message:
        pool.leave(message, heard=True)
        raise Dismissed(**message["ended"])
    return message


def dismiss(pool: Pool, number: int = 0, cause: str = "", error: str = "") -> None:
    """Let the spares end with the job: as it was stopped, or with an error. All members must call."""
    if pool.has_spares or pool.survives:
        pool.leave({"ended": {"number": number, "cause": cause, "error": error}})


@contextmanager
def _deaf(pool: Pool) -> Iterator[None]:
    """Ignore signals that ask the job to leave: the members do, and dismiss this rank. By SIGTERM it is not called."""
    signal.alarm(0)  # of one that came when it was a member
    before = {number: signal.signal(number, signal.SIG_IGN) for number in NUMBERS}
    signal.signal(signal.SIGTERM, lambda *_: pool.leaves())
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _note(before: int, pool: Pool, began: float, run: Run) -> None:
    progress, parts = run.progress, run.progress.parts
    pause_s = CLOCK.now() - (parts[-1].left if parts else began)
    place = {"step": progress.step, "samples_done": run.sampler.cursor}
    progress.resized = [*progress.resized, {"before": before, "now": len(pool.members), **place, "pause_s": pause_s}]
