"""``psframe.sklearn.Classifier`` as an estimator among others."""

import pickle
from types import SimpleNamespace

import numpy as np
import pytest

from tests.helpers import launcher

sklearn = pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from sklearn.base import clone  # noqa: E402
from sklearn.datasets import load_digits, make_blobs  # noqa: E402
from sklearn.model_selection import GridSearchCV, cross_val_score  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import FunctionTransformer  # noqa: E402
from sklearn.utils.estimator_checks import estimator_checks_generator  # noqa: E402

from psframe import sklearn as estimators  # noqa: E402
from psframe.nn.activations import Flatten  # noqa: E402
from psframe.nn.conv import Conv1d  # noqa: E402
from psframe.nn.dense import Dense  # noqa: E402
from psframe.optim import Adam  # noqa: E402
from psframe.sklearn import Classifier  # noqa: E402

#: of scikit-learn's checks, those of the default suite; the long suites have all
QUICK = (
    "check_classifiers_one_label",
    "check_estimators_unfitted",
    "check_fit2d_1sample",
    "check_n_features_in_after_fitting",
    "check_no_attributes_set_in_init",
)
#: checks that do not apply: their names, and why
LEFT = {"check_array_api_input": "arrays of other libraries are converted, not computed with"}


@pytest.fixture(autouse=True)
def mpirun(monkeypatch):
    mpi = launcher.installed("mpich") or pytest.skip("no mpich: bash launch/test.sh installs it")
    monkeypatch.setenv("PSFRAME_MPIRUN", str(mpi.prefix / "bin" / "mpirun"))


def checks():
    for _, check in estimator_checks_generator(Classifier(random_state=0)):
        name = check.func.__name__
        marks = [] if name in QUICK else [pytest.mark.full]
        yield pytest.param(check, id=name, marks=[*marks, *([pytest.mark.skip(LEFT[name])] if name in LEFT else [])])


@pytest.mark.parametrize("check", list(checks()))
def test_estimator_is_as_scikit_learn_wants_it(check):
    check(Classifier(random_state=0))


def test_quick_checks_exist():
    assert {*QUICK, *LEFT} <= {param.id for param in checks()}


@pytest.mark.full
def test_search_within_a_pipeline_finds_the_better_rate():
    images, labels = load_digits(return_X_y=True)
    halved = make_pipeline(FunctionTransformer(np.sqrt), Classifier(epochs=4, random_state=0))
    rates = [{"name": "adam", "lr": lr} for lr in (1e-7, 1e-2)]
    search = GridSearchCV(halved, {"classifier__optimizer": rates}, cv=2)
    search.fit(images[:200], labels[:200])
    assert search.best_params_["classifier__optimizer"]["lr"] == 1e-2
    assert search.score(images[400:600], labels[400:600]) > 0.6


@pytest.mark.full
def test_images_and_classes_of_any_kind_are_learnt_and_kept(tmp_path):
    images, numbers = load_digits(return_X_y=True)
    labels = np.array(["even", "odd"])[numbers % 2]
    network = Classifier(
        [Flatten(), Dense(20), Dense(2)], input_shape=(1, 8, 8), epochs=3, ranks=3, runs=tmp_path, random_state=1
    )
    scores = cross_val_score(network, images[:300], labels[:300], cv=2)
    assert scores.min() > 0.6
    fitted = clone(network).fit(images[:300].reshape(300, 1, 8, 8), labels[:300])
    assert list(fitted.classes_) == ["even", "odd"]
    assert fitted.run_.path.parent == tmp_path
    train = fitted.run_.config.train
    assert (train.seed, train.epochs, train.batch_size) == (1, 3, 32)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(
        again.predict_proba(images.reshape(-1, 1, 8, 8)), fitted.predict_proba(images.reshape(-1, 1, 8, 8))
    )
    np.testing.assert_allclose(fitted.predict_proba(images.reshape(-1, 1, 8, 8)).sum(axis=1), 1)


@pytest.mark.full
def test_sequences_are_learnt_and_an_optimizer_is_copied():
    sequences = np.random.default_rng(0).random((60, 2, 12)) + (np.arange(60) % 2)[:, None, None]
    network = Classifier(one_dimensional, input_shape=(2, 12), epochs=4, optimizer=Adam(lr=0.02), random_state=0)
    fitted = clone(network).fit(sequences.reshape(60, -1), np.arange(60) % 2)
    assert fitted.score(sequences.reshape(60, -1), np.arange(60) % 2) > 0.9


def one_dimensional(input_shape, n_classes):
    return [Conv1d(4, 3), Flatten(), Dense(n_classes)]


def test_wrong_shape_is_told():
    samples, labels = make_blobs(20, random_state=0)
    with pytest.raises(ValueError, match=r"as many numbers as X has features, got \(1, 3, 3\) for 2"):
        Classifier(input_shape=(1, 3, 3)).fit(samples, labels)


@pytest.fixture
def asked(monkeypatch):
    """What fits ask of ``psframe.fit``, which does not train here."""
    every = []

    def fit(config, **keys):
        every.append({"config": config, **keys})
        return SimpleNamespace(training=None)

    monkeypatch.setattr(estimators, "fit", fit)
    monkeypatch.setattr(estimators, "TrainedNetwork", lambda training: training)
    return every


@pytest.mark.parametrize("state", [0, 1, 77, np.int64(5), np.random.RandomState(3), None])
def test_seed_is_that_of_the_random_state(state, asked):
    """A number is the seed itself; a state is drawn from anew by every fit, as the estimators of scikit-learn do."""
    samples, labels = make_blobs(20, random_state=0)
    classifier = Classifier(random_state=state)
    classifier.fit(samples, labels).fit(samples, labels)
    seeds = [each["train"]["seed"] for each in asked]
    if state is None:
        assert seeds[0] != seeds[1]
    elif isinstance(state, np.random.RandomState):
        again = np.random.RandomState(3)
        assert seeds == [again.randint(estimators.MAX_SEED) for _ in range(2)]
    else:
        assert seeds == [state, state]
    assert all(isinstance(seed, int) for seed in seeds)


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ({}, {"epochs": 30, "batch_size": 32, "optimizer": "adam", "ranks": 2, "sync": "allreduce", "config": None}),
        ({"epochs": 4, "batch_size": 5, "ranks": 9}, {"epochs": 4, "batch_size": 5, "ranks": 9}),
        ({"ranks": 99, "optimizer": "lamb"}, {"ranks": 20, "optimizer": "lamb"}),
        ({"config": {"sync": "easgd"}}, {"config": {"sync": "easgd"}, "sync": None}),
        ({"callbacks": ["one"], "model": "lenet"}, {"callbacks": ["one"], "model": "lenet"}),
        ({"input_shape": (1, 1, 2)}, {"shape": (20, 1, 1, 2), "sequences": False}),
        ({"input_shape": (1, 2)}, {"shape": (20, 1, 2), "sequences": True}),
        ({}, {"shape": (20, 2, 1, 1), "sequences": False, "n_classes": 3, "labels": [0, 1, 2], "quiet": True}),
    ],
)
def test_fit_asks_for_what_the_classifier_was_made_with(keys, found, asked):
    samples, labels = make_blobs(20, centers=3, random_state=0)
    Classifier(**keys).fit(samples, np.array(["a", "b", "c"])[labels])
    (each,) = asked
    images, numbers = each["data"]
    seen = {**each, **each["train"], **each["dataset"], "shape": images.shape, "labels": [*np.unique(numbers)]}
    assert {key: seen[key] for key in found} == found
    np.testing.assert_array_equal(images.reshape(20, 2), samples)
