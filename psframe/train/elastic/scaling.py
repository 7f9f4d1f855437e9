"""Scaling for other ranks, as rank 0 sees them between two steps (:class:`Scaling`)."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any

from psframe.cluster.pool import Pool
from psframe.errors import UserError, nearest
from psframe.record import scaling
from psframe.record.log import LOG
from psframe.record.scaling import Answer, Request

LOOK_S = 0.1  # seconds between two looks for a request, which may cost a millisecond each on a network disk
#: seconds from the signal of a rank that it alone was to leave, and not the job
ALONE_S = 1.0


class NoScaling:
    """Scaling of a job without spares, and on ranks but the first."""

    def due(self) -> bool:
        return False

    def take(self) -> dict[str, Any] | None:
        return None

    def done(self, epoch: int, resized: dict[str, Any]) -> None: ...

    def again(self) -> None: ...


class Scaling:
    """Scaling to a job, in its run's folder; rank 0 alone has them.

    Parameters
    ----------
    run : Path
    pool : Pool
    check : callable
        Called with the number of ranks on each node; raises UserError if these cannot train.
    """

    def __init__(self, run: Path, pool: Pool, check: Callable[[tuple[int, ...]], None]):
        self.run, self.pool, self.check = run, pool, check
        self.seen: Request | None = None
        self.answered: Request | None = None
        if (asked := scaling.asked(run)) and scaling.answered(run, asked):  # by a rank 0 that has died
            self.seen = self.answered = asked
        self.leaving: dict[int, float] = {}  # ranks that have asked to leave, and since when
        self.kept: set[str | int] = set()  # those of them that the others cannot do without
        self.change: dict[str, Any] | None = None
        self.looked = perf_counter()

    def due(self) -> bool:
        """Return True if the ranks must pause for a request; one that cannot be done is answered here."""
        now = perf_counter()
        if self.change is None and now - self.looked >= LOOK_S:
            self.looked = now
            self._look()
        return self.change is not None

    def take(self) -> dict[str, Any] | None:
        """Return the change that all ranks must now make, plain values: members and drained hosts; None for none."""
        change, self.change = self.change, None
        if change and self.seen and self.seen != self.answered and not scaling.begin(self.run, self.seen):
            self.seen = self.answered  # it was withdrawn
            return None
        return change

    def done(self, epoch: int, resized: dict[str, Any]) -> None:
        """Answer a request, once the new members are ready to train, by what is noted in the record of ``epoch``."""
        self.kept.clear()
        if self.seen == self.answered:
            return  # ranks have left by themselves
        self._answer(epoch=epoch, **{key: resized[key] for key in ("before", "now", "step", "pause_s")})

    def again(self) -> None:
        """Look for an unanswered request once more, as a change was broken off."""
        self.seen, self.change = self.answered, None

    def _look(self) -> None:
        if alone := self._alone():
            self._drain(alone)
            return
        asked = scaling.asked(self.run)
        if asked is None or asked == self.seen:
            return
        self.seen = asked
        try:
            self.change = self._change(asked)
        except UserError as error:
            self._answer(error=str(error)[:4000])
            return
        if self.change["members"] == list(self.pool.members):
            self.pool.drained.update(self.change["drained"])
            self.change = None
            self._answer(before=len(self.pool.members), now=len(self.pool.members))

    def _alone(self) -> list[int]:
        """Return the ranks that have asked to leave, and whose job was not asked to end since."""
        now, pool = perf_counter(), self.pool
        for rank in set(scaling.leaving(self.run)) - {pool.number}:  # this rank has asked before it led
            self.leaving.setdefault(rank, now)
        done = pool.drained | self.kept
        return [rank for rank, at in self.leaving.items() if now - at >= ALONE_S and rank not in done]

    def _drain(self, alone: list[int]) -> None:
        members = self.pool.chosen(None, alone)
        if members == self.pool.members:  # they are spares
            self.pool.drained.update(alone)
            return
        try:
            self.check(self.pool.sizes(members))
        except UserError as error:
            self.kept.update(alone)
            LOG.warning(f"rank {alone[0]} was asked to leave, and stays: {error}")
            return
        self.change = {"members": list(members), "drained": alone}

    def _change(self, asked: Request) -> dict[str, Any]:
        pool, hosts = self.pool, self.pool.cluster.hosts
        for host in asked.drain:
            if host not in hosts:
                raise UserError(f"--drain must name hosts of the job, got {host!r}; {nearest(host, hosts)}")
        if hosts[0] in asked.drain:
            raise UserError(
                f"--drain must leave the host of rank 0, which keeps the parameters, got {hosts[0]!r}; end the job "
                "and continue it elsewhere (checkpoint.resume)"
            )
        members = pool.chosen(asked.ranks, asked.drain)
        if asked.ranks is not None and len(members) < asked.ranks:
            away = " that are not drained" if asked.drain or pool.drained else ""
            raise UserError(
                f"--to must be at most the ranks of the job{away}, {len(members)}, got {asked.ranks}; give fewer, or "
                "start the job with more ranks (mpirun -n), of which elastic.ranks train at first"
            )
        self.check(pool.sizes(members))
        return {"members": list(members), "drained": asked.drain}

    def _answer(self, **of: Any) -> None:
        assert self.seen
        self.answered = self.seen
        with suppress(OSError):  # who asked sees no answer; the job goes on
            scaling.answer(self.run, Answer(id=self.seen.id, **of))
