"""Counts of moved bytes: both ends of each kind of transfer, and a new beginning of every count."""

from dataclasses import asdict, fields

import pytest

from psframe.record.traffic import Traffic

#: kind of transfer, its arguments, and what it counts of bytes read, written and sent
COUNTED = [
    ("send", (100,), (100, 0, 100)),
    ("receive", (100,), (0, 100, 0)),
    ("transfer", (100,), (100, 100, 100)),
    ("sum", (100, 3), (300, 100, 0)),
    ("allreduce", (100, 4), (150, 150, 150)),
    ("allreduce", (100, 1), (0, 0, 0)),
    ("broadcast", (100, 4, True), (300, 0, 300)),
    ("broadcast", (100, 4, False), (0, 100, 0)),
]


@pytest.mark.parametrize(("kind", "arguments", "bytes_of"), COUNTED)
def test_traffic_counts_both_ends_of_a_transfer_each_time(kind, arguments, bytes_of):
    traffic = Traffic()
    for times in (1, 2):
        getattr(traffic, kind)(*arguments)
        assert (traffic.read, traffic.written, traffic.sent) == tuple(times * n for n in bytes_of)
    assert traffic.remote == 0, "a message has no domain of memory"


def test_clear_of_traffic_begins_every_count_anew():
    traffic = Traffic(**{field.name: number for number, field in enumerate(fields(Traffic), 1)})
    traffic.clear()
    assert asdict(traffic) == asdict(Traffic())
