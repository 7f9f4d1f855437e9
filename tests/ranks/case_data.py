"""Data that are not what they were, or no numbers: told before the first step."""

import contextlib
import io
from unittest import mock

from tests.helpers import own
from tests.ranks.harness import ranks
from tests.ranks.training import folder, train

KEYS = ("dataset=tests.helpers.own:data", "sync=allreduce", "train.batch_size=4")


def told(world, where, *overrides, **changed):
    """Return what rank 0 says where a run is refused, whose data are changed so."""
    said = io.StringIO()
    with mock.patch.dict(own.DATA, changed), contextlib.redirect_stderr(said):
        train(world, world.size, where, *KEYS, *overrides, expect=2)
    every = world.allgather(said.getvalue())
    assert not any(every[1:]), every
    assert every[0].count("psframe:") == 1, every
    return every[0]


@ranks(1, 2)
def run_goes_on_with_the_data_that_it_was_begun_with(world):
    with folder(world) as where:
        _, _, run = train(world, world.size, where, *KEYS, "train.epochs=1")
        again = (f"checkpoint.resume={run}", "train.epochs=2")
        for changed in ({"seed": 1}, {"n": 40}, {"n": 61}):
            said = told(world, where, *again, **changed)
            assert "a continued run must have the data that it was begun with" in said, said
        records, _, same = train(world, world.size, where, *KEYS, *again)
        assert (same, [record["epoch"] for record in records]) == (run, [1, 2])


@ranks(1, 2)
def numbers_that_are_none_are_found_in_the_data(world):
    with folder(world) as where:
        for wrong in (float("nan"), float("inf"), float("-inf")):
            said = told(world, where, wrong=wrong)
            assert f"samples must hold finite numbers, got {wrong} in sample 7 of the training split" in said, said


@ranks(1, 2)
def cosine_over_more_epochs_says_where_the_rate_goes_on(world):
    with folder(world) as where:
        keys = (*KEYS, "schedule=cosine", "optimizer.lr=0.08")
        _, _, run = train(world, world.size, where, *keys, "train.epochs=1")
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            train(world, world.size, where, *keys, "train.epochs=2", f"checkpoint.resume={run}", quiet=False)
        every = world.allgather(said.getvalue())
        assert (
            "schedule cosine ends after 2 epochs now, not 1: the learning rate goes on at 0.04, where it was at 0"
            in every[0]
        )
