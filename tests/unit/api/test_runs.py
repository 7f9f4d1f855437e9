"""A run that goes on: what is given to ``psframe.fit`` again, from its folder and from the script that began it."""

import pytest

import psframe
from psframe.api.runs import Run
from psframe.record import metrics

CONFIG = """\
name: a-run
model: lenet
dataset: mnist_5k
optimizer: {name: sgd, lr: 0.1}
train: {epochs: 2}
checkpoint: {resume: none, keep: 3}
versions: {numpy: '2'}
"""


@pytest.fixture
def fitted(monkeypatch):
    """Arguments of each call of ``psframe.fit``."""
    calls = []
    monkeypatch.setattr(psframe, "fit", lambda content, *overrides, **given: calls.append((content, overrides, given)))
    return calls


def folder(tmp_path, *ranks):
    """Return the folder of a run whose epochs were on so many ranks."""
    (tmp_path / "config.yaml").write_text(CONFIG)
    metrics.append(tmp_path, "metrics.jsonl", [{"epoch": n, "n_ranks": m} for n, m in enumerate(ranks, 1)])
    return tmp_path


@pytest.mark.parametrize(
    ("ranks", "kept", "given", "wanted"),
    [
        ((2, 3), {}, {}, {"ranks": 3}),
        ((3, 2), {}, {}, {"ranks": 2}),
        ((2, 3), {"ranks": 4, "quiet": True}, {}, {"ranks": 4, "quiet": True}),
        ((2, 3), {"ranks": 4, "quiet": True}, {"ranks": 5}, {"ranks": 5, "quiet": True}),
        ((2, 3), {}, {"ranks": 5, "data": "d"}, {"ranks": 5, "data": "d"}),
        ((), {}, {}, {}),
    ],
)
def test_run_goes_on_with_the_ranks_of_its_last_epoch_unless_others_are_given(
    tmp_path, fitted, ranks, kept, given, wanted
):
    run = Run(folder(tmp_path, *ranks), given=kept)
    for begun in (run, run.best):
        begun.resume(9, **given)
        assert fitted.pop()[2] == wanted


def test_run_goes_on_in_its_folder_by_its_own_config(tmp_path, fitted):
    Run(folder(tmp_path, 2)).resume(9, "optimizer.lr=0.01", "train.seed=1")
    ((content, overrides, _),) = fitted
    assert overrides == ("optimizer.lr=0.01", "train.seed=1")
    assert content == {
        "name": "a-run",
        "model": "lenet",
        "dataset": "mnist_5k",
        "optimizer": {"name": "sgd", "lr": 0.1},
        "train": {"epochs": 9},
        "checkpoint": {"keep": 3, "resume": str(tmp_path.resolve())},
    }
