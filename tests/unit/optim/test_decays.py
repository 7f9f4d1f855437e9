"""Decays of moments near 1: their corrections fit them."""

import numpy as np
import pytest

from psframe.errors import UserError
from psframe.optim import LAMB, Adam, AdamW

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
