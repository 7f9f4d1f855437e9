"""Passes in step (:mod:`psframe.nn.steps`), and batch statistics over several batches."""

import numpy as np
import pytest

from psframe.errors import UserError
from psframe.memory.allocator import Allocator
from psframe.memory.arena import Arena
from psframe.nn import section, steps
from psframe.nn.base import Pass
from psframe.nn.initial import initialize
from psframe.nn.network import Network
from psframe.nn.normalization import BatchNorm
from psframe.nn.progress import Batch
from psframe.nn.threads import Threads
from tests.helpers import tiny

SHAPE, CLASSES, SIZES = (2, 8, 9), 5, (4, 3, 0, 4)


def bound(norm, max_batch, n_kept=1, n_threads=1, others=None, build=tiny.meeting):
    net = Network(build(SHAPE, CLASSES, norm=norm), SHAPE, CLASSES)
    allocator = Allocator()
    net.bind(Arena(net.layout, 1, allocator), max_batch, allocator, "direct", Threads(n_threads), n_kept, others=others)
    initialize(net, 0)
    return net


def data(net):
    x = np.random.default_rng(0).standard_normal((sum(SIZES), *net.input_shape), np.float32)
    return x, np.arange(len(x)) % CLASSES


def of_batches(net, x, labels):
    """Return the losses, and the sum of the gradients, of batches of ``SIZES`` in step."""
    total, batches = np.zeros_like(net.arena.grads), []

    def add(grads):
        n_trained = net.layout.n_trained
        if grads is None:
            total[n_trained:] += net.arena.grads[n_trained:]
        for place in map(net.arena.place_of, (grads or {}).values()):
            if place.start < n_trained:
                total[place] += net.arena.grads[place]

    def put_nothing(grads):
        pass

    for number, n in enumerate(SIZES):
        own = slice(sum(SIZES[:number]), sum(SIZES[:number]) + n)
        state = Pass(True, 1, 2, np.arange(own.start, own.stop), 4 * number, done=add if n else put_nothing)
        batches.append(Batch(x[own], lambda own=own: labels[own], state))
    return net.gradients_in_step(batches), total


def test_batches_in_step_are_one_batch():
    one = bound("batch", sum(SIZES))
    x, labels = data(one)
    loss, _ = one.gradients(x, labels, Pass(True, 1, 2, np.arange(len(x))))
    losses, total = of_batches(bound("batch_over_workers", 4, len(SIZES)), x, labels)
    assert sum(each for each, _ in losses) == pytest.approx(loss, rel=1e-5)
    scale = np.abs(one.arena.grads).max()
    np.testing.assert_allclose(total, one.arena.grads, rtol=1e-4, atol=2e-5 * scale)
    # each for itself they are another
    apart, _ = of_batches(bound("batch", 4, len(SIZES)), x, labels)
    assert sum(each for each, _ in apart) != pytest.approx(loss, rel=1e-3)


def test_batches_in_step_have_the_same_bits_with_any_threads():
    x, labels = data(bound("batch_over_workers", 4))
    found = [of_batches(bound("batch_over_workers", 4, len(SIZES), n), x, labels)[1] for n in (1, 2, 3)]
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


def test_samples_that_others_have_count():
    """With its own rows given again, as by a worker with the same samples, mean and variance stay what they are."""

    class Same:
        def gather(self, rows):
            return np.concatenate([rows, rows])

    net, alone = bound("batch_over_workers", 11, others=Same()), bound("batch", 11)
    x, labels = data(alone)
    for each in (net, alone):
        each.gradients(x, labels, Pass(True, 1, 2, np.arange(11)))
    # but the running variance is the unbiased one, of twice as many numbers
    n = net.layout.n_trained
    np.testing.assert_allclose(net.arena.grads[:n], alone.arena.grads[:n], rtol=1e-5, atol=1e-6)
    assert (net.arena.grads[n:] != alone.arena.grads[n:]).any()


@pytest.mark.parametrize("norm", ["group", "layer"])
def test_normalization_of_samples_has_the_same_bits_in_any_parts(norm, monkeypatch):
    found = []
    for part_bytes, n_threads in ((1 << 30, 1), (1, 1), (20_000, 1), (1, 3)):
        monkeypatch.setattr(section, "PART_BYTES", part_bytes)
        net = bound(norm, 11, n_threads=n_threads, build=tiny.residual)
        assert net.sections[0].part == (2 if (part_bytes, n_threads) == (1, 1) else net.sections[0].part)
        x, labels = data(net)
        net.gradients(x, labels, Pass(True, 1, 2, np.arange(11)))
        found.append(net.arena.grads.copy())
    assert np.abs(net.arena.views(found[0])["1." + net.layers[1].kind + ".weight"]).min() > 0
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


def test_passes_go_on_from_meeting_to_meeting():
    told = []

    def going(name, n):
        for number in range(n):
            told.append(f"{name}{number}")
            yield lambda: told.append("met")
        return name

    assert steps.finish(steps.in_step([going("a", 2), going("b", 2), going("c", 0)])) == ["a", "b", "c"]
    assert told == ["a0", "b0", "met", "a1", "b1", "met"]


def test_statistics_over_something_else_are_refused():
    with pytest.raises(UserError, match=r"over of BatchNorm must name samples, got 'worker'; .*workers"):
        BatchNorm(over="worker")
