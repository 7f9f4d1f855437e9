"""Forward pass in a report: seconds by number of ranks, and the efficiency against the fewest of them."""

from pathlib import Path

import pytest

from psframe.report import forward
from tests.helpers.report_page import rows_of


def bench(seconds, model="har_cnn"):
    """Return a bench with the median seconds by number of ranks, beside a quarter less and more."""
    rows = [
        {"n_ranks": n, "seconds": {"median": s, "low": 0.75 * s, "high": 1.25 * s}, "samples_per_s": 800 / s}
        for n, s in seconds.items()
    ]
    return {"bench": "forward", "model": model, "batch": 800, "machine": "A CPU", "cores": 16, "rows": rows}


@pytest.mark.parametrize("fewest", [1, 4])
def test_efficiency_is_against_the_fewest_ranks(drawn, fewest):
    seconds = {4 * fewest: 1.0, fewest: 2.0, 2 * fewest: 1.0}
    (section,) = forward.sections([(Path("a"), bench(seconds))])
    ranks = [fewest, 2 * fewest, 4 * fewest]
    numbers = [
        ["2.00", "1.50–2.50", "400.0", "100.0 %"],
        ["1.00", "0.750–1.250", "800.0", "100.0 %"],
        ["1.00", "0.750–1.250", "800.0", "50.0 %"],
    ]
    shown = [["har_cnn, batch 800", str(n), *row] for n, row in zip(ranks, numbers, strict=True)]
    assert rows_of(section.body, "forward") == shown
    times, shares = drawn.values()
    assert times["har_cnn, batch 800"] == list(zip(ranks, [2, 1, 1], strict=True))
    assert times["ideal"] == list(zip(ranks, [2, 1, 0.5], strict=True))
    assert shares["har_cnn, batch 800"] == list(zip(ranks, [100, 100, 50], strict=True))


def test_each_bench_is_against_its_own_fewest_ranks(drawn):
    made = {"one": bench({1: 8.0, 2: 5.0}), "four": bench({4: 3.0, 8: 2.0})}
    (section,) = forward.sections([(Path(f"{name}.json"), of) for name, of in made.items()])
    shown = [(row[0].partition("(")[2], row[1], row[5]) for row in rows_of(section.body, "forward")]
    assert shown == [
        ("one)", "1", "100.0 %"),
        ("one)", "2", "80.0 %"),
        ("four)", "4", "100.0 %"),
        ("four)", "8", "75.0 %"),
    ]
