"""Remainder of a run between its old ranks and its new ones (:class:`Remainder`): state, data and measurements."""

from collections.abc import Sequence

import numpy as np

from psframe.cluster.cluster import Cluster
from psframe.record.checkpoint import Saved
from psframe.record.clock import CLOCK
from psframe.train.assembly.again import released
from psframe.train.elastic.counted import Counted
from psframe.train.epoch import moved
from psframe.train.epoch_metrics import EpochTimings
from psframe.train.loop import together
from psframe.train.run import Run


class Remainder:
    """Remainder of a run whose ranks change; the run's own memory is freed, but for its data.

    Parameters
    ----------
    run : Run
        Its ranks have all paused after the same step, or were anywhere when one of them died. It refers to its
        remainder until another run takes its place.
    keeps : bool
        True on rank 0, and on those that may lead in its place if it dies before the run goes on.

    Attributes
    ----------
    saved : Saved or None
        State to continue from, on ranks that keep it.
    held : LoadedData
    """

    def __init__(self, run: Run, keeps: bool):
        self.run = run
        self.saved: Saved | None = None
        n_steps = 0
        if keeps:
            self.saved, n_steps = _state(run)
        self.place = [run.progress.epoch, 0 if run.progress.concluded else len(run.progress.parts), n_steps]
        self.lockstep, self.n_losses = run.sync.traits.in_step, run.work.n_losses
        self.held = released(run)
        run.remainder = self

    def agree_place(self, cluster: Cluster, keepers: Sequence[int]) -> None:
        """Drop, on every rank, the steps that rank 0's state does not contain. All survivors must call.

        ``keepers`` have a state, rank 0 first; those that have another one than rank 0 get its state.
        """
        places = cluster.allgather(self.place)
        for keeper in keepers:
            if places[keeper] == places[0]:
                continue
            if cluster.rank == 0:
                cluster.comm.send(self.saved, keeper)
            elif cluster.rank == keeper:
                self.saved, self.place = cluster.comm.recv(source=0), places[0]
        self._forget(*places[0])

    def _forget(self, epoch: int, n_parts: int, n_steps: int) -> None:
        progress, parts, now = self.run.progress, self.run.progress.parts, CLOCK.now()
        if progress.concluded or progress.epoch != epoch:  # a rank died while rank 0 told that an epoch has ended
            progress.forget()
        del parts[n_parts:]
        while 0 < len(parts) < n_parts:  # a part that this rank had not begun; one that has none catches up later
            parts.append(EpochTimings.of(n_steps, self.n_losses))
        if parts:
            parts[-1].cut(n_steps)
            if self.lockstep:
                parts[-1].cut_turns(n_steps, now)
            if not parts[-1].is_agreed:
                parts[-1].begun, parts[-1].ended, parts[-1].is_agreed = parts[-1].begun or now, now, True


def _state(run: Run) -> tuple[Saved, int]:
    """Return a copy of the state after the last complete step, and the steps of the epoch's last part in it."""
    progress = run.progress
    done = 0 if progress.concluded else run.sampler.cursor
    n_steps, step = len(progress.parts[-1].losses) if progress.parts else 0, progress.step
    if progress.parts and not progress.parts[-1].is_agreed:  # ranks were inside it
        done = run.sync.source.salvaged()
        n_steps = run.sampler.steps_to(done)
        step += n_steps
    snapshot = run.sync.state()
    state = np.array(snapshot.rows, np.float32).reshape(-1, len(snapshot.params))
    layout = run.network.arena.layout.describe()
    return Saved(snapshot.params.copy(), state, progress.epoch, step, layout, done), n_steps


def hand_over(run: Run, leaves: bool) -> None:
    """Add to rank 0's measurements of the epoch those of ranks that leave, and what all have counted. All must call.

    Between two epochs there is nothing to add: what they have counted is in the last one's record.
    """
    if run.progress.parts:
        _add_up(run, leaves)
    if leaves:
        run.leaves = True
        run.progress.parts.clear()
        run.outputs.usage.take()
        run.outputs.trace.take()


def _add_up(run: Run, leaves: bool) -> None:
    parts, progress = run.progress.parts, run.progress
    counts, first_step = run.tally.counts(), run.updater.first_nonfinite_step
    mine = Counted(moved(run), counts, run.guard.take(), first_step, run.mover.take())
    losses = [(part.losses, part.samples) for part in parts] if leaves else []
    for rank, (of_rank, counted) in enumerate(run.cluster.gather_in_time((losses, mine)) or []):
        for part, (of_part, samples) in zip(parts, of_rank, strict=False):
            part.losses += of_part
            part.samples += samples
        if progress.counted is None:
            progress.counted = counted
        elif rank == 0:
            progress.counted.note(counted)
        else:
            progress.counted.add(counted)


def catch_up(run: Run, begun_at: int) -> None:
    """Give a rank that has joined the epoch's parts before, in which it computed nothing. All members must call.

    All note what rank 0 has noted of the epoch, as any of them may be rank 0 next; ``begun_at`` as in Progress.
    """
    progress, parts = run.progress, run.progress.parts
    measured = [(len(part.losses), part.begun, part.ended, part.times, part.met) for part in parts]
    noted = begun_at, progress.lost, progress.went_back, progress.resized
    of_first, noted = run.cluster.bcast((measured, noted))
    progress.begun_at, progress.lost, progress.went_back, progress.resized = noted
    offset_s = run.cluster.clock_offset_s
    if parts or not of_first:
        return
    for n_steps, begun, ended, times, met in of_first:
        part = EpochTimings.of(n_steps, run.work.n_losses)
        part.begun, part.ended, part.left, part.is_agreed = begun - offset_s, ended - offset_s, ended - offset_s, True
        if together(run):  # each exchange counts as met at rank 0's time
            arrivals = np.array(times).reshape(-1, 3)[:, 2] - offset_s
            part.times, part.met = [(at, at, at) for at in arrivals.tolist()], list(met)
        parts.append(part)
    parts[0].absent_s = CLOCK.now() - parts[0].begun
