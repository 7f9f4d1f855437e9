"""Sync modes and stores keep their promises in every order of their ranks' steps that is tried, and after a death."""

from itertools import zip_longest

import pytest

from psframe import collectives, sync
from psframe.sync import stores
from psframe.virtual.orders import AtRandom
from tests.helpers.promises import PROMISES
from tests.helpers.store_promises import STORE_PROMISES
from tests.helpers.suite import IS_FULL, examples
from tests.unit.virtual.mistakes import MISTAKES


def test_every_mode_collective_and_store_is_held_to_a_promise():
    assert {promise.spec["mode"] for promise in PROMISES} == set(sync.TABLE)
    assert {promise.form[0] for promise in PROMISES} == set(collectives.TABLE) - {"null"}
    assert {promise.store for promise in STORE_PROMISES} == set(stores.TABLE)


@pytest.mark.parametrize("seed", range(examples(6)))
@pytest.mark.parametrize("promise", PROMISES, ids=str)
def test_mode_keeps_its_promise_in_any_order(promise, seed):
    promise.hold(AtRandom(seed))


@pytest.mark.parametrize("seed", range(examples(3)))
@pytest.mark.parametrize("promise", PROMISES, ids=str)
def test_death_at_any_point_leaves_nobody_waiting_and_no_half_step(promise, seed):
    promise.hold_after_death(AtRandom(seed), seed)


@pytest.mark.parametrize("promise", STORE_PROMISES, ids=str)
def test_store_keeps_its_promise_wherever_a_rank_is_interrupted(promise):
    for number, check in enumerate(promise.tries()):
        if IS_FULL or number % 4 == 0:
            check()


@pytest.mark.parametrize("mistake", MISTAKES, ids=str)
def test_mistake_is_found_by_some_order(mistake):
    """Else the tests above would not find it either."""
    broken = [promise for promise in (*STORE_PROMISES, *PROMISES) if mistake.modes in str(promise)]
    in_turn = zip_longest(*(promise.tries() for promise in broken))  # what they compare with has no mistake yet
    with mistake.made():
        assert any(_fails(check) for checks in in_turn for check in checks)


def _fails(check):
    try:
        check and check()
    except Exception:  # AssertionError, Deadlock, or what the mistake leads to
        return True
    return False
