"""Cases of tests/ranks over virtual ranks: threads of this process, of which one runs at a time.

They need no launcher, and share what is compiled and imported. The long suites have them over real ranks, too.
"""

import pytest

from psframe.virtual.orders import ByTime
from tests.helpers.virtual import on_ranks
from tests.ranks.harness import cases, virtual_counts

CASES = cases()


@pytest.mark.parametrize(
    ("n", "name"),
    [
        pytest.param(n, name, id=f"{n}-{name}", marks=[] if is_default else [pytest.mark.full])
        for name, n, is_default in virtual_counts()
    ],
)
def test_over_virtual_ranks(n, name):
    on_ranks(n, CASES[name], ByTime(n))
