"""Parameters of which the default suite has some, and the long suites all."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def thinned(cases: Iterable[Any], kept: Collection[int]) -> list[Any]:
    """Return ``cases`` as parameters; those at other places than ``kept`` are left to the long suites.

    Of a product whose factors other tests have shown to be independent, each value of a factor is kept once; of moments
    or amounts, a few.
    """
    words = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*each, marks=[pytest.mark.full] * (at not in kept)) for at, each in enumerate(words)]
