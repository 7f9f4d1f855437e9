"""Curves of learning against epochs and seconds, and histograms of staleness, as a report draws them."""

from pathlib import Path

import pytest

from psframe.report import training
from psframe.report.read import Run

EPOCHS = [
    {"epoch": 1, "epoch_s": 2.0, "loss": 0.9, "test_loss": 1.0, "accuracy": 0.5},
    {"epoch": 2, "epoch_s": 3.0, "loss": 0.6, "test_loss": 0.8, "accuracy": 0.75},
    {"epoch": 3, "epoch_s": 5.0, "loss": 0.3, "test_loss": 0.7, "accuracy": 0.875},
]


def run(records, group="shared, 4 ranks"):
    return Run(Path("a"), {}, records, [], 0, label=group, group=group)


def test_curves_are_drawn_against_epochs_and_the_seconds_since_the_start(drawn):
    training.sections([run(EPOCHS)])
    losses = {"shared, 4 ranks": [0.9, 0.6, 0.3], "shared, 4 ranks, test loss": [1.0, 0.8, 0.7]}
    shares = {"shared, 4 ranks": [50.0, 75.0, 87.5]}
    wanted = {}
    for across, at in (("epochs", [1, 2, 3]), ("training seconds", [2, 5, 10])):
        for title, curves in (("training loss", losses), ("test accuracy (%)", shares)):
            wanted[f"{title} against {across}"] = {
                label: list(zip(at, values, strict=True)) for label, values in curves.items()
            }
    assert drawn == wanted


def test_curves_leave_out_epochs_without_a_value_and_their_seconds_count(drawn):
    training.sections([run([EPOCHS[0], {**EPOCHS[1], "accuracy": None}, EPOCHS[2]])])
    assert drawn["test accuracy (%) against epochs"] == {"shared, 4 ranks": [(1, 50.0), (3, 87.5)]}
    assert drawn["test accuracy (%) against training seconds"] == {"shared, 4 ranks": [(2, 50.0), (10, 87.5)]}


def test_curves_against_seconds_end_where_seconds_are_unknown(drawn):
    training.sections([run([EPOCHS[0], {**EPOCHS[1], "epoch_s": None}, EPOCHS[2]])])
    assert [x for x, _ in drawn["training loss against epochs"]["shared, 4 ranks"]] == [1, 2, 3]
    assert [x for x, _ in drawn["training loss against training seconds"]["shared, 4 ranks"]] == [2]


def test_curves_of_more_than_two_runs_have_no_test_loss(drawn):
    training.sections([run(EPOCHS, f"{n} ranks") for n in (2, 4, 8)])
    assert drawn["training loss against epochs"].keys() == {"2 ranks", "4 ranks", "8 ranks"}


@pytest.fixture
def bins(monkeypatch):
    """Bins of each histogram by the run's label, as they are drawn."""
    charts = {}

    def histogram(title, bins, x, y, label):
        charts[label] = bins
        return f"<svg>{title}</svg>"

    monkeypatch.setattr(training, "histogram", histogram)
    return charts


def test_staleness_is_summed_over_the_epochs(bins):
    epochs = [{"0": 3, "2": 1}, {"0": 4}, None, {"2": 5, "3": 2, "x": 7, "1": -1}]
    training.sections(
        [run([{"epoch": n, "staleness": counts} for n, counts in enumerate(epochs, 1)]), run([{"epoch": 1}], "none")]
    )
    assert bins == {"shared, 4 ranks": [("0", 7), ("1", 0), ("2", 6), ("3", 2)]}


def test_staleness_of_many_clocks_is_binned(bins):
    training.sections([run([{"staleness": {"0": 1, "1": 2}}, {"staleness": {"1": 1, "2": 4, "12": 5}}])])
    (found,) = bins.values()
    assert found == [("0–1", 4), ("2–3", 4), ("4–5", 0), ("6–7", 0), ("8–9", 0), ("10–11", 0), ("12–13", 5)]
