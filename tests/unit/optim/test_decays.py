"""Decays of moments near 1: their corrections fit them."""

import numpy as np
import pytest

from psframe.errors import UserError
from psframe.optim import LAMB, LARS, SGD, AdaGrad, Adam, AdamW, Lion

F = np.float32


@pytest.mark.parametrize("make", [Adam, AdamW], ids=lambda make: make.__name__)
@pytest.mark.parametrize("beta2", [0.99, 0.999, 0.99999, 0.9999999])
def test_first_step_is_as_long_as_the_rate_whatever_the_decay(make, beta2):
    """Its corrected moments are the gradient and its square, if both have one beta2: that of float32."""
    w, g, state = np.zeros(4, F), np.full(4, 3, F), np.zeros((2, 4), F)
    make(lr=0.01, beta2=beta2).update(w, g, state, 0.01, 1)
    np.testing.assert_allclose(w, -0.01, rtol=1e-6)


@pytest.mark.parametrize("make", [Adam, AdamW, LAMB], ids=lambda make: make.__name__)
def test_decay_that_is_1_in_float32_is_refused(make):
    with pytest.raises(UserError, match="beta2 must be below 1 in float32, got 0"):
        make(beta2=0.99999999)


@pytest.mark.parametrize(
    ("make", "keys", "word"),
    [
        (Lion, {"beta2": 0.99999999}, "beta2 must be below 1 in float32"),
        (SGD, {"momentum": 0.99999999}, "momentum must be below 1 in float32"),
        (LARS, {"momentum": 0.99999999}, "momentum must be below 1 in float32"),
        *((make, {"eps": 1e-50}, "eps must be above 0 in float32") for make in (Adam, AdamW, AdaGrad, LAMB)),
        (SGD, {"nesterov": True}, "nesterov must have a momentum"),
    ],
)
def test_keys_that_vanish_are_refused(make, keys, word):
    with pytest.raises(UserError, match=word):
        make(**keys)


@pytest.mark.parametrize("make", [Adam, AdamW, AdaGrad, LAMB], ids=lambda make: make.__name__)
def test_number_without_gradients_stays_finite_with_the_least_eps(make):
    optimizer = make(eps=1e-37)
    w, state = np.zeros(4, F), np.zeros((optimizer.n_state, 4), F)
    optimizer.update(w, np.zeros(4, F), state, 0.01, 1)
    assert np.isfinite(w).all()
