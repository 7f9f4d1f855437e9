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
