"""Measurements for a prediction, by a clock that stands still but for the work that it is told of."""

from types import SimpleNamespace

import numpy as np
import pytest

from psframe.predict import codecs, measure
from psframe.predict.machine import Exchange
from tests.helpers.predictions import work


class Clock:
    """CPU time, of which the first encoding and adding take a hundred times as much as later ones."""

    def __init__(self):
        self.now, self.calls = 0.0, {}

    def take(self, what, seconds):
        self.calls[what] = self.calls.get(what, 0) + 1
        self.now += seconds * (100 if self.calls[what] == 1 else 1)


@pytest.fixture
def maker(monkeypatch):
    """Codecs of a byte a number, which take 3 s a number to encode and 1 s to add."""
    clock = Clock()

    def codec(size):
        return SimpleNamespace(
            n_bytes=size,
            encode=lambda gradient, payload: clock.take("encode", 3.0 * len(gradient)),
            add=lambda payload, total: clock.take("add", 1.0 * len(total)),
        )

    monkeypatch.setattr(codecs, "thread_time", lambda: clock.now)
    monkeypatch.setattr(codecs.compression, "warm", lambda spec: None)
    monkeypatch.setattr(codecs.compression, "codec_maker", lambda spec, allocator: codec)
    monkeypatch.setattr(codecs, "MOST", 1000)


def ranks(*paces):
    """Return a cluster whose ranks take the seconds of this one times their pace."""
    return SimpleNamespace(barrier=lambda: None, allgather=lambda own: [np.array(own) * pace for pace in paces])


@pytest.mark.parametrize("n_params", [1, 600, 1000, 1001, 4000])
def test_codec_takes_the_seconds_of_the_whole_vector_however_long(maker, n_params):
    found = codecs.measure(ranks(1.0), "some", n_params)
    assert found == {
        "name": "some",
        "share": 0.25,
        "encode_s": pytest.approx(3.0 * n_params),
        "add_s": pytest.approx(1.0 * n_params),
    }


def test_codec_takes_the_mean_seconds_of_all_ranks(maker):
    found = codecs.measure(ranks(1.0, 2.0, 6.0), {"name": "some", "k": 3}, 10)
    assert (found["name"], found["encode_s"], found["add_s"]) == ("some", pytest.approx(90), pytest.approx(30))
    assert codecs.measure(ranks(1.0), "none", 10) is None


def test_work_that_was_measured_twice_takes_the_mean_seconds():
    once, again = work(step_s=(2.0, 1.0)), work(step_s=(4.0, 1.5))
    assert once.mean(again) == work(step_s=(3.0, 1.25))
    assert once.mean(once) == once


def test_seconds_of_exchanges_rise_with_bytes_for_each_method_and_number_of_ranks():
    took = {
        ("shared", 8): [(1 << 10, 2.0), (1 << 20, 5.0), (2 << 20, 4.0), (4 << 20, 6.0)],
        ("shared", 2): [(1 << 10, 1.0), (1 << 20, 0.5), (2 << 20, 0.75), (4 << 20, 0.25)],
        ("buffer", 8): [(1 << 10, 0.1), (1 << 20, 0.2), (2 << 20, 0.3), (4 << 20, 0.2)],
    }
    risen = {("shared", 8): [2.0, 5.0, 5.0, 6.0], ("shared", 2): [1.0] * 4, ("buffer", 8): [0.1, 0.2, 0.3, 0.3]}
    measured = [Exchange(*key, n_bytes, seconds) for key, rows in took.items() for n_bytes, seconds in rows]
    wanted = [
        Exchange(*key, n_bytes, seconds)
        for key, rows in took.items()
        for (n_bytes, _), seconds in zip(rows, risen[key], strict=True)
    ]
    for order in (measured, measured[::-1]):
        assert {*measure._rising(order)} == {*wanted}
        assert len(measure._rising(order)) == len(wanted)
