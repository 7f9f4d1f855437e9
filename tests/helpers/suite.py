"""Extent of the suite that runs (:data:`IS_FULL`): the default one, or the long ones of ``PSFRAME_TESTS=full``."""

import os
from itertools import product

from tests.helpers.pairs import pairwise

#: whether the long suites run, too
IS_FULL = os.environ.get("PSFRAME_TESTS") == "full"

#: all combinations of factors' values there; elsewhere some that have each pair
combined = product if IS_FULL else pairwise
