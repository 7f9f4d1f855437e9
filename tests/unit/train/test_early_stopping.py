"""Epochs that are better than all before, and the end of a run by its patience, its goal or its seconds."""

from math import inf, nan
from types import SimpleNamespace

import pytest

from psframe.errors import UserError
from psframe.record import metrics
from psframe.train.callbacks.best import Best
from psframe.train.callbacks.early_stopping import EarlyStopping


def records(values, metric="test_loss", seconds=1.0):
    return [{"epoch": epoch, metric: value, "epoch_s": seconds} for epoch, value in enumerate(values, 1)]


@pytest.mark.parametrize(
    ("values", "min_delta", "better"),
    [
        ([4, 3, 3, 5, 3, 2], 0.0, [1, 2, 6]),
        ([None, nan, 4, inf, -inf, 4, 3], 0.0, [3, 7]),
        ([4, 3.75, 3.5, 3.25, 3.25], 0.25, [1, 3]),
        ([4, 3.75, 3.74, 3.49, 4], 0.25, [1, 3]),
        ([0, 0.0, -0.0, -1], 0.0, [1, 4]),
    ],
)
@pytest.mark.parametrize(("metric", "sign"), [("test_loss", 1), ("top_5_error", 1), ("eval_s", 1), ("accuracy", -1)])
def test_improvement_is_a_change_for_the_better_by_more_than_its_least(metric, sign, values, min_delta, better):
    """An equal value is none, nor is one that is no number."""
    values = [value and sign * value for value in values]
    for how in ("auto", "min" if sign > 0 else "max"):
        best = Best(metric, min_delta, how)
        assert (best.value, best.epoch) == (None, 0)
        assert [record["epoch"] for record in records(values, metric) if best.improves(record)] == better
        assert (best.value, best.epoch) == (values[better[-1] - 1], better[-1])


@pytest.mark.parametrize(("better", "as_good"), [("min", [0.4, 0.5]), ("max", [0.5, 0.6])])
def test_value_is_as_good_as_the_goal_that_it_equals(better, as_good):
    best = Best("metric", better=better)
    values = [0.4, 0.5, 0.6, None]
    assert [value for value in values if best.is_as_good({"metrics": {"metric": value}}, 0.5)] == as_good


def test_best_epoch_is_found_among_those_recorded_with_the_metric(tmp_path):
    metrics.append(tmp_path, "metrics.jsonl", [*records([9, 4, 7]), {"epoch": 4, "accuracy": 1.0}])
    best = Best("test_loss")
    best.read(tmp_path)
    assert (best.value, best.epoch) == (4, 2)
    with pytest.raises(UserError, match="got 'test_los'"):
        Best("test_los").improves(records([9])[0])


class Run(SimpleNamespace):
    """A run as a callback sees it, in a folder that may have epochs already."""

    def __init__(self, path):
        super().__init__(path=path, epoch=metrics.last_epoch(path), reasons=[])

    def stop(self, reason):
        self.reasons.append(reason)

    def train(self, callback, values, seconds=1.0):
        """Take epochs that end in these values until the callback ends the run; return how many there are, and why."""
        callback.on_run_begin(self)
        for value in values:
            self.epoch += 1
            record = {"epoch": self.epoch, "test_loss": value, "epoch_s": seconds}
            callback.on_epoch_end(self, record)
            metrics.append(self.path, "metrics.jsonl", [record])
            if self.reasons:
                break
        return self.epoch, "".join(self.reasons)


STOPS = [
    ({"patience": 2}, [5, 4, 4, 4, 3], 4, "test_loss not better than 4 of epoch 2 for 2 epoch(s)"),
    ({"patience": 2}, [5, 6, 4, 5, 3, 3, 3], 7, "test_loss not better than 3 of epoch 5 for 2 epoch(s)"),
    ({"patience": 1}, [nan, 1], 1, "test_loss not better than none for 1 epoch(s)"),
    ({"patience": 2, "min_delta": 0.5}, [5, 4.5, 4.5], 3, "test_loss not better than 5 of epoch 1 for 2 epoch(s)"),
    ({"patience": 9, "reach": 3.0}, [5, 4, 3, 2], 3, "test_loss has reached 3"),
    ({"patience": 9, "reach": 3.0, "better": "max"}, [2, 3, 4], 2, "test_loss has reached 3"),
    ({"patience": 9, "seconds": 3.0}, [5, 4, 3, 2], 3, "3 s of training are over"),
    ({"patience": 9, "seconds": 2.5}, [5, 4, 3, 2], 3, "2.5 s of training are over"),
    ({"patience": 9}, [5, 4, 3, 2], 4, ""),
]


@pytest.mark.parametrize(("keys", "values", "epochs", "reason"), STOPS)
def test_run_ends_after_the_epoch_that_says_so(tmp_path, keys, values, epochs, reason):
    assert Run(tmp_path).train(EarlyStopping(**keys), values) == (epochs, reason)


def test_continued_run_goes_on_counting_its_seconds(tmp_path):
    assert Run(tmp_path).train(EarlyStopping(seconds=8.0), [5, 4], seconds=3.0) == (2, "")
    assert Run(tmp_path).train(EarlyStopping(seconds=8.0), [3, 2, 1], seconds=1.0) == (4, "8 s of training are over")
    assert Run(tmp_path).train(EarlyStopping(seconds=8.0), [1], seconds=0.0) == (5, "8 s of training are over")


def test_continued_run_has_its_best_epoch_and_all_of_its_patience_again(tmp_path):
    first, then = (f"test_loss not better than {best} for 2 epoch(s)" for best in ("4 of epoch 1", "3 of epoch 7"))
    assert Run(tmp_path).train(EarlyStopping(patience=2), [4, 5, 5]) == (3, first)
    assert Run(tmp_path).train(EarlyStopping(patience=2), [5, 5, 5]) == (5, first)
    assert Run(tmp_path).train(EarlyStopping(patience=2), [5, 3, 4, 3]) == (9, then)


def test_interrupted_run_has_the_patience_that_it_had_left(tmp_path):
    reason = "test_loss not better than 4 of epoch 1 for 3 epoch(s)"
    assert Run(tmp_path).train(EarlyStopping(patience=3), [4, 5]) == (2, "")
    assert Run(tmp_path).train(EarlyStopping(patience=3), [5, 5, 5]) == (4, reason)
