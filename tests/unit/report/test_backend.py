"""PyTorch's backend in a report: a line for each collective, over the ranks whose records are read."""

from pathlib import Path

from psframe.report import backend
from tests.helpers.report_page import rows_of


def record(rank, *rows, group="default"):
    keys = ("collective", "dtype", "calls", "bytes", "waited_s", "longest_wait_s")
    return Path("a"), {"rank": rank, "group": group, "collectives": [dict(zip(keys, row, strict=True)) for row in rows]}


def lines(*records):
    """Return the rows of the table on collectives, as they are shown."""
    (section,) = backend.sections([], records)
    return rows_of(section.body, "torch_record")


def test_collective_is_summed_over_ranks_and_its_longest_wait_is_that_of_one():
    often, seldom = ("all_reduce", "float32", 30, 10_000, 2.0, 0.5), ("all_reduce", "float32", 10, 30_000, 1.0, 0.9)
    want = ["default", "all_reduce", "float32", "2", "20", "1 kB", "75 ms", "66.7 ms", "900 ms"]
    assert lines(record(3, often), record(5, seldom)) == [[*want, "5"]]
    assert lines(record(3, seldom), record(5, often)) == [[*want, "3"]]


def test_collectives_have_a_line_for_each_group_and_type():
    reduced, whole, barrier = (("all_reduce", "float32", 1, 8, 0.5, 0.5), ("all_reduce", "int64", 2, 32, 1.0, 0.75),
                               ("barrier", "", 4, 0, 0.0, 0.0))  # fmt: skip
    found = lines(record(0, reduced, whole, barrier), record(1, reduced), record(0, reduced, group="another"))
    assert found == [
        ["another", "all_reduce", "float32", "1", "1", "8 bytes", "500 ms", "500 ms", "500 ms", "0"],
        ["default", "all_reduce", "float32", "2", "1", "8 bytes", "500 ms", "500 ms", "500 ms", "0"],
        ["default", "all_reduce", "int64", "1", "2", "16 bytes", "500 ms", "500 ms", "750 ms", "0"],
        ["default", "barrier", "–", "1", "4", "0 bytes", "0 s", "0 s", "0 s", "0"],
    ]


def test_rows_that_are_damaged_are_left_out():
    sound = ("all_reduce", "float32", 1, 8, 0.5, 0.5)
    damaged = [
        ("all_reduce", "float32", *row) for row in ((0, 8, 1, 1), (1, -8, 1, 1), (1, 8, None, 1), (1, 8, 1, "x"))
    ]
    assert lines(record(2, sound, *damaged), record("x", sound)) == lines(record(2, sound))
    assert backend.sections([], [record(2, *damaged)]) == []


def test_bench_shows_both_backends_and_their_ratio():
    of_psframe, of_gloo, ratio = ({"median": m, "low": 0.9 * m, "high": 1.1 * m} for m in (2.0, 5.0, 2.4))
    row = {"ranks": 4, "what": "all_reduce 1 MB", "psframe_ms": of_psframe, "against": "gloo", "against_ms": of_gloo}
    (section,) = backend.sections([(Path("a"), {"rows": [{**row, "ratio": ratio}, row]})], [])
    shown = ["4", "all_reduce 1 MB", "2.00", "gloo", "5.00"]
    assert rows_of(section.body, "torch") == [[*shown, "2.40", "2.16–2.64"], [*shown, "–", "–"]]
