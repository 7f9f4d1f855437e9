"""Reason of a command's failure, among what its ranks and their launcher write."""

import pytest

from psframe.cluster.mpirun import complaint


@pytest.mark.parametrize(
    ("err", "reason"),
    [
        (
            "psframe: warning: the sums overflow\npsframe: the loss must stay finite, got nan\n",
            "the loss must stay finite",
        ),
        ("-----\nmpirun: no such host\n-----\n", "mpirun: no such host"),
        ("", "no word"),
        ("psframe: warning: rank 2 is 3.0 s late\n", "psframe: warning: rank 2 is 3.0 s late"),
    ],
)
def test_reason_is_what_failed_and_no_warning(err, reason):
    assert complaint(err, "no word").startswith(reason)
