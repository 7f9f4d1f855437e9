"""A user's own optimizer is tried before training: slices must end in the bits of the whole."""

import numpy as np
import pytest

from psframe.config.registry import Choice
from psframe.errors import UserError
from psframe.train.plan.optimizer_trial import check
from tests.helpers.own import SignSGD


class Own:
    """Momentum SGD, which each of those below does wrong in one way."""

    lr, n_state = 0.1, 1

    def update(self, params, grads, state, lr, step):
        state *= 0.9
        state += grads
        params -= lr * state[0]


class RMSprop(Own):
    n_state = 2

    def update(self, params, grads, state, lr, step):
        state[0] = 0.9 * state[0] + 0.1 * grads**2
        state[1] = np.tanh(grads) + step
        params -= lr * grads / (np.sqrt(state[0]) + 1e-8)


class LARS(Own):
    def update(self, params, grads, state, lr, step):
        params -= lr * grads * np.linalg.norm(params) / (np.linalg.norm(grads) + 1e-8)


class WholeLARS(LARS):
    cuts = "tensors"


class ClipsByNorm(Own):
    def update(self, params, grads, state, lr, step):
        params -= lr * grads * min(1.0, 100 / (np.linalg.norm(grads) + 1e-8))


class LateTrust(Own):
    def update(self, params, grads, state, lr, step):
        params -= lr * (grads if step < 1000 else grads - grads.mean())


class Neighbours(Own):
    def update(self, params, grads, state, lr, step):
        params[:-1] -= lr * grads[1:]


class KeepsItself(Own):
    def __init__(self):
        self.velocity = None

    def update(self, params, grads, state, lr, step):
        self.velocity = grads.copy() if self.velocity is None else 0.9 * self.velocity + grads
        params -= lr * self.velocity


class CountsCalls(Own):
    calls = 0

    def update(self, params, grads, state, lr, step):
        self.calls += 1
        params -= lr / self.calls * grads


class Noisy(Own):
    random = np.random.default_rng(0)  # which goes on from call to call

    def update(self, params, grads, state, lr, step):
        params -= lr * (grads + self.random.standard_normal(len(grads), np.float32))


class WithoutEps(Own):
    """AdaGrad that divides 0 by 0 where a gradient has always been 0."""

    def update(self, params, grads, state, lr, step):
        state[0] += grads**2
        params -= lr * grads / np.sqrt(state[0])


class Fails(Own):
    def update(self, params, grads, state, lr, step):
        params -= lr * grads.reshape(2, -1).sum(0)


def tried(make, reproducible="fixed_workers"):
    check(Choice("optimizer", f"my:{make.__name__}", make, {"lr": 0.1} if make is SignSGD else {}), reproducible)


@pytest.mark.parametrize("make", [Own, RMSprop, SignSGD, WholeLARS])
def test_optimizer_that_is_elementwise_passes(make):
    tried(make)


@pytest.mark.parametrize("make", [LARS, ClipsByNorm, LateTrust, Neighbours, CountsCalls])
def test_optimizer_that_looks_beside_a_number_is_refused(make):
    for reproducible in ("none", "fixed_workers"):
        with pytest.raises(UserError, match=rf"its own gradient and state alone.*'my:{make.__name__}'"):
            tried(make, reproducible)


def test_optimizer_that_divides_by_a_gradient_of_zero_is_refused():
    with pytest.raises(UserError, match=r"gradient is 0 in every step.*'my:WithoutEps'.*add a small eps"):
        tried(WithoutEps)


@pytest.mark.parametrize("make", [Fails, KeepsItself])
def test_optimizer_that_raises_for_a_slice_is_told(make):
    with pytest.raises(UserError, match="for any slice"):
        tried(make)


def test_optimizer_that_draws_at_random_needs_reproducible_none():
    with pytest.raises(UserError, match=r"do the same when it is given the same.*train\.reproducible=none"):
        tried(Noisy)
    tried(Noisy, "none")


@pytest.mark.parametrize(
    ("name", "value"),
    [("n_state", -1), ("n_state", "2"), ("lr", "fast"), ("lr", float("nan")), ("cuts", "layers")],
)
def test_optimizer_with_a_wrong_attribute_is_told(name, value):
    with pytest.raises(UserError, match=f"an optimizer's {name} must be"):
        tried(type("Wrong", (Own,), {name: value}))
