"""Promises of the sync modes, whatever the order of their ranks' steps (:data:`PROMISES`), with marks for gradients."""

from dataclasses import dataclass
from functools import cache, partial
from random import Random
from typing import Any

import numpy as np

from psframe.optim import SGD
from psframe.virtual.orders import AtRandom, ByTime
from tests.helpers.virtual import N_EPOCHS, N_STEPS, Marked, play

COLLECTIVES = {
    1: [("shared", {}), ("shared", {"chunk_bytes": 8192}), ("shared", {"reducers": "server"}), ("buffer", {})],
    2: [("buffer", {}), ("object", {}), ("hierarchical", {})],
}
MOMENTUM = SGD(lr=0.5, momentum=0.5)
N_SEEDS = 20  #: orders in which a mistake is looked for
N_POINTS = 600  #: of a rank's training, of which many have fewer
STORES = {1: ("shared", "window"), 2: ("window",)}


@dataclass(frozen=True, eq=False)
class Promise:
    """A mode in one form, and the check of how it has ended.

    Attributes
    ----------
    check : callable
        ``check(ends)`` of the ranks that live.
    """

    check: Any
    spec: dict[str, Any]
    form: tuple[str, dict[str, Any]] = ("shared", {})
    n: int = 4
    n_nodes: int = 1
    optimizer: Any = None

    def __str__(self):
        words = " ".join(f"{key}={value}" for key, value in self.spec.items() if key != "mode")
        form = " ".join((self.form[0], *(f"{key}={value}" for key, value in self.form[1].items())))
        return f"{self.spec['mode']} {words} {form} on {self.n_nodes}: {self.check.__name__}"

    def ends(self, order, victim=None, dies_at=0):
        """Return the ends of the ranks that live, of a job in an order, and its scheduler."""

        def body(cluster):
            rig = Marked(cluster, self.spec, self.form, self.optimizer)
            return rig.trained(dies_at if cluster.rank == victim else 0)

        found, ranks = play(self.n, body, order, self.n_nodes)
        return [end for end, rank in zip(found, ranks.ranks, strict=True) if rank.lives], ranks

    def tries(self):
        """Return checks, of one order each."""
        if self.check is order_changes_no_bit:
            _usual(self)  # now, and not with a mistake that the caller makes
        return (partial(self.hold, AtRandom(seed)) for seed in range(N_SEEDS))

    def hold(self, order):
        """Check a job that nothing happens to."""
        found, _ = self.ends(order)
        assert not any(end.was_lost for end in found)
        self.check(self, found)

    def hold_after_death(self, order, seed):
        """Check a job of which a rank is killed at any of its points: nobody hangs, and no state has half a step."""
        draw = Random(seed)
        victim = draw.randrange(self.n)
        found, ranks = self.ends(order, victim, 1 + draw.randrange(N_POINTS))
        if ranks.ranks[victim].lives:
            self.check(self, found)
            return
        for end in found:
            if end.params is not None:
                _is_whole(self, end)


def _alike(ends):
    first, *others = (end.params.tobytes() for end in ends)
    assert all(other == first for other in others)


def every_step_has_one_mean(promise, ends):
    """And is computed from the parameters after all steps before, and no later one."""
    _alike(ends)
    rig = ends[0].rig
    whole = rig.marks(ends[0].params)
    assert np.allclose(whole, _mean(rig), rtol=1e-5), whole
    for end in ends:
        for epoch, step, _, params in end.rig.read:
            expected = np.zeros_like(whole)
            expected.reshape(-1, rig.team.n_workers)[: epoch * N_STEPS + step] = _mean(rig)
            assert np.allclose(rig.marks(params), expected, rtol=1e-5), (epoch, step, rig.marks(params))


def _mean(rig):
    sampler = rig.sampler
    return sampler.size_of(0, 0) / sampler.samples_in(0)


def every_gradient_counts_once(promise, ends):
    _alike(ends)
    rig = ends[0].rig
    assert (rig.marks(ends[0].params) == 1).all(), rig.marks(ends[0].params)
    _every_share_was_drawn_once(ends)


def _every_share_was_drawn_once(ends):
    drawn = sorted(read[:3] for end in ends for read in end.rig.read)
    assert len(drawn) == len(set(drawn)) == N_EPOCHS * N_STEPS * ends[0].rig.team.n_workers, drawn


def staleness_is_told(promise, ends):
    """The record's staleness is the number of updates between the parameters of a gradient and its use."""
    every_gradient_counts_once(promise, ends)
    rig = ends[0].rig
    n = N_STEPS * rig.team.n_workers
    told = sum(int(end.rig.tally.stale @ np.arange(len(end.rig.tally.stale))) for end in ends)
    seen = sum(int((rig.marks(read[3])[read[0]] == 1).sum()) for end in ends for read in end.rig.read)
    assert told == N_EPOCHS * n * (n - 1) // 2 - seen, (told, seen)


def nobody_runs_ahead(promise, ends):
    """Worker k begins step c once it has all steps before c - s of all workers, and the record tells no more than s."""
    _alike(ends)
    rig, bound = ends[0].rig, promise.spec["staleness"]
    assert np.allclose(rig.marks(ends[0].params), _mean(rig), rtol=1e-5)
    for end in ends:
        assert not end.rig.tally.stale[bound + 1 :].any()
        for epoch, step, worker, params in end.rig.read:
            marks = end.rig.marks(params)
            assert marks[:epoch].all()
            assert marks[epoch, : max(0, step - bound)].all(), (epoch, step, worker, marks[epoch])


def some_gradients_of_a_step_count(promise, ends):
    """As many as are waited for, each once, with the mean over these."""
    _alike(ends)
    rig = ends[0].rig
    n_used = rig.team.n_workers - promise.spec["backup_workers"]
    marks = rig.marks(ends[0].params)
    assert ((marks != 0).sum(axis=2) == n_used).all(), marks
    assert np.allclose(marks[marks != 0], 1 / n_used, rtol=1e-5)
    for end in ends:
        for epoch, step, _, params in end.rig.read:
            seen = (rig.marks(params) != 0).sum(axis=2).reshape(-1)
            assert (seen == [n_used] * (epoch * N_STEPS + step) + [0] * (len(seen) - epoch * N_STEPS - step)).all()


def averages_have_all_local_steps(promise, ends):
    _alike(ends)
    rig = ends[0].rig
    assert np.allclose(rig.marks(ends[0].params), 1 / rig.team.n_workers, rtol=1e-5)


def order_changes_no_bit(promise, ends):
    _alike(ends)
    assert ends[0].params.tobytes() == _usual(promise)


@cache
def _usual(promise):
    return promise.ends(ByTime())[0][0].params.tobytes()


def force_moves_without_loss(promise, ends):
    """What worker k has lost to the centre, the centre has won, and nothing else."""
    _alike(ends)
    moved = sum(end.rig.mode.exchange.moved for end in ends if hasattr(end.rig.mode, "exchange"))
    assert np.allclose(ends[0].params, moved, atol=1e-5), (ends[0].rig.marks(ends[0].params), ends[0].rig.marks(moved))
    _every_share_was_drawn_once(ends)
    read = {}
    for end in ends if promise.spec["mode"] == "hybrid" else ():
        where = end.rig.cluster.node, end.rig.group.place
        for epoch, step, _, params in end.rig.read:
            assert read.setdefault((where, epoch, step), params.tobytes()) == params.tobytes(), (where, epoch, step)


def _is_whole(promise, end):
    """Check that a state has all of an update or nothing."""
    marks = end.rig.marks(end.params)
    if promise.check is every_step_has_one_mean:
        steps = marks.reshape(-1, end.rig.team.n_workers)
        n = int((steps != 0).any(axis=1).sum())
        assert np.allclose(steps[:n], _mean(end.rig), rtol=1e-5), steps
        assert not steps[n:].any()
    elif promise.check in (every_gradient_counts_once, staleness_is_told):
        assert np.isin(marks, (0, 1)).all(), marks


def _made():
    for n_nodes in (1, 2):
        for form in COLLECTIVES[n_nodes]:
            for spec in ({"mode": "sync_ps"}, {"mode": "sync_ps", "server": "colocated"}, {"mode": "allreduce"}):
                if spec["mode"] == "sync_ps" or form[1].get("reducers") != "server":
                    yield Promise(every_step_has_one_mean, spec, form, n_nodes=n_nodes)
            yield Promise(averages_have_all_local_steps, {"mode": "local_sgd", "every": 2}, form, n_nodes=n_nodes)
            for spec in (
                {"mode": "block_momentum", "every": 2, "nesterov": True},
                {"mode": "easgd", "period": 2, "synchronous": True},
            ):
                yield Promise(order_changes_no_bit, spec, form, n_nodes=n_nodes, optimizer=MOMENTUM)
        yield Promise(every_step_has_one_mean, {"mode": "sync_ps", "servers": 2}, ("buffer", {}), n=5, n_nodes=n_nodes)
        for store in STORES[n_nodes]:
            more = {"store": store}
            for check, spec in (
                (staleness_is_told, {"mode": "async_ps"}),
                (every_gradient_counts_once, {"mode": "async_ps", "compensate": True, "compensation": 1e-30}),
                (nobody_runs_ahead, {"mode": "async_ps", "staleness": 1}),
                (every_step_has_one_mean, {"mode": "async_ps", "staleness": 0}),
                (some_gradients_of_a_step_count, {"mode": "sync_ps", "backup_workers": 1}),
                (every_gradient_counts_once, {"mode": "dogwild", "period": 2}),
                (force_moves_without_loss, {"mode": "easgd", "period": 2, "beta": 0.5}),
                (force_moves_without_loss, {"mode": "hybrid", "period": 2, "beta": 0.5}),
            ):
                yield Promise(check, spec | more, n_nodes=n_nodes)
    yield Promise(every_gradient_counts_once, {"mode": "hogwild"})


PROMISES = list(_made())
