"""Extent of suites: what the default one leaves out (:data:`DEFAULT`), whether the long ones run (:data:`IS_FULL`)."""

import os
from itertools import product

from tests.helpers.pairs import pairwise

#: marks that pytest selects the default suite by, as launch/test.sh does
DEFAULT = "not full and not soak"

#: whether the long suites of ``PSFRAME_TESTS=full`` run, too
IS_FULL = os.environ.get("PSFRAME_TESTS") == "full"

#: all combinations of factors' values there; elsewhere some that have each pair
combined = product if IS_FULL else pairwise


def examples(n: int) -> int:
    """Return how many of ``n`` random examples a test tries: all in the long suites, a third in the default one."""
    return n if IS_FULL else max(1, n // 3)
