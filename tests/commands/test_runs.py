"""A trained run from Python and at the prompt: records, predictions, evaluation, export."""

import csv
import io
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

import psframe
from psframe.api.trained import MAX_BATCH
from psframe.datasets.digits import digits
from psframe.errors import UserError
from psframe.starter import OWN
from tests.helpers import forked, launcher
from tests.helpers.launcher import ROOT


def train(folder, n, *keys):
    """Return the folder of a short run on digits."""
    mpi = launcher.installed("mpich") or pytest.skip("no mpich: bash launch/test.sh installs it")
    config = "psframe/starter/quickstart.yaml"
    ended = launcher.run(mpi, n, ["-m", "psframe.train", config, "train.epochs=2", f"record.dir={folder}", *keys])
    assert ended.status == 0, ended
    (path,) = folder.iterdir()
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return train(tmp_path_factory.mktemp("runs"), 3)


@pytest.fixture
def run(path):
    return psframe.open_run(path)


@pytest.fixture(scope="module")
def test_set():
    split = digits().test
    return split.read(0, split.n)


def command(*words, status=0):
    """Return what a command prints, on stdout, or on stderr where it is to fail."""
    ended = forked.command(OWN.get(words[0], f"psframe.{words[0]}"), *words[1:])
    assert ended.returncode == status, ended
    return ended.stderr if status else ended.stdout


@pytest.mark.full
def test_normalized_samples_are_what_the_network_takes(run, test_set):
    images, _ = test_set
    mean, std = (np.array(row)[:, None, None] for row in (run.training.inputs.mean, run.training.inputs.std))
    np.testing.assert_allclose(run.normalize(images), (images - mean) / std, rtol=1e-5, atol=1e-5)


def test_records_are_columns(run):
    assert list(run.epochs["epoch"]) == [1, 2]
    assert repr(run).endswith("2 of 2 epochs)")
    assert len(run.steps) == 0


def test_evaluation_on_the_test_set_is_that_of_the_record(run, test_set):
    scores = run.evaluate(*test_set)
    assert scores["accuracy"] == run.epochs["accuracy"][1]
    assert scores["loss"] == pytest.approx(run.epochs["test_loss"][1], rel=1e-12)


@pytest.mark.full
def test_run_in_bfloat16_is_evaluated_as_it_was_trained(tmp_path, test_set):
    run = psframe.open_run(train(tmp_path, 2, "train.precision=bf16", "model=tests.helpers.tiny:build"))
    assert run.evaluate(*test_set)["accuracy"] == run.epochs["accuracy"][-1]
    assert run.epochs["precision"][-1] == "bf16"
    tensors = run.tensors()
    assert {tensor.dtype for tensor in tensors.values()} == {np.dtype(np.float32)}
    assert any((tensor.view(np.uint32) & 0xFFFF).any() for tensor in tensors.values()), "these are the masters"


def test_metrics_of_the_test_set_are_those_of_the_predictions(run, test_set):
    images, labels = test_set
    scores = run.evaluate(images, labels, metrics=["confusion", "top_1", {"name": "log_loss"}])
    assert {key: scores[key] for key in ("loss", "accuracy")} == run.evaluate(images, labels)
    counts = np.zeros((10, 10), int)
    np.add.at(counts, (labels, run.predict(images)), 1)
    assert scores["metrics"]["confusion"] == counts.tolist()
    assert scores["metrics"]["top_1"] == scores["accuracy"]
    assert scores["metrics"]["log_loss"] == pytest.approx(scores["loss"], rel=1e-9)
    with pytest.raises(UserError, match=r"metrics\[0\]\.name: there is no 'top'"):
        run.evaluate(images, labels, metrics=["top"])


def test_predictions_do_not_depend_on_the_form_of_the_samples(run, test_set):
    images, _ = test_set
    classes = run.predict(images)
    for other in (images[:, 0], images.astype(np.float64), images.tolist()):
        np.testing.assert_array_equal(run.predict(other), classes)
    np.testing.assert_array_equal(np.concatenate([run.predict(images[:5]), run.predict(images[5:])]), classes)
    probabilities = run.predict_proba(images)
    np.testing.assert_array_equal(probabilities.argmax(axis=1), classes)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    assert run.predict(images[:0]).shape == (0,)


@pytest.mark.parametrize(
    ("images", "said"),
    [
        (np.zeros((2, 9, 9)), r"samples must be numbers of shape \(n, 1, 8, 8\).*got float64 \(2, 9, 9\)"),
        (np.zeros((2, 8, 8, 1)), "transpose them, the channels lie last"),
        (np.full((2, 1, 8, 8), np.nan), "finite numbers, got others in sample 0"),
        (np.array([["a"]]), "samples must be numbers"),
    ],
)
def test_samples_that_do_not_fit_are_told(run, images, said):
    with pytest.raises(UserError, match=said):
        run.predict(images)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_sample_that_is_not_finite_is_named_by_its_number_among_all(run, value):
    for wrong in (0, 1, MAX_BATCH - 1, MAX_BATCH, 2 * MAX_BATCH + 43):
        images = np.zeros((2 * MAX_BATCH + 44, 1, 8, 8), np.float32)
        images[wrong, 0, 7, 7] = images[-1, 0, 0, 0] = value
        for refused in (run.predict, run.predict_proba, run.normalize):
            with pytest.raises(UserError, match=rf"got others in sample {wrong}; leave it out"):
                refused(images)


def test_labels_that_do_not_fit_are_told(run, test_set):
    images, labels = test_set
    for wrong in (labels[1:], labels.astype(float)):
        with pytest.raises(UserError, match="labels must be one integer a sample"):
            run.evaluate(images, wrong)
    with pytest.raises(UserError, match=r"labels must lie in \[0, 10\)"):
        run.evaluate(images, labels + 1)


def test_model_that_is_another_is_told(path):
    from psframe.nn.activations import Flatten
    from psframe.nn.dense import Dense

    with pytest.raises(UserError, match="the tensors of its checkpoint"):
        _ = psframe.open_run(path, model=lambda shape, n_classes: [Flatten(), Dense(n_classes)]).trained


def test_figures_are_a_page_and_tensors_a_file(run, tmp_path):
    run.figure().save(tmp_path / "page.html")
    assert "figure-curves" in (tmp_path / "page.html").read_text()
    assert run._repr_html_().startswith("<iframe")
    run.save(tmp_path / "m.npz")
    saved = np.load(tmp_path / "m.npz")
    assert {name: saved[name].tobytes() for name in saved} == {n: t.tobytes() for n, t in run.tensors().items()}
    with pytest.raises(UserError, match="a file of tensors must end in"):
        run.save(tmp_path / "m.pt")


@pytest.mark.full
def test_module_of_a_torch_run_predicts_the_same(tmp_path, test_set):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    net = "model={name: torch, build: 'tests.helpers.torch_nets:row'}"
    run = psframe.open_run(train(tmp_path, 2, net, "train.epochs=1"))
    images, _ = test_set
    inputs = run.trained.inputs
    x = (images.astype(np.float32) - inputs.mean[0]) / inputs.std[0]
    with torch.no_grad():
        np.testing.assert_array_equal(
            run.module()(torch.from_numpy(x.astype(np.float32))).argmax(1), run.predict(images)
        )


def test_python_door_is_light_and_needs_no_mpi(path):
    code = (
        "import sys, psframe; assert 'numpy' not in sys.modules; import numpy as np; "
        f"run = psframe.open_run({str(path)!r}); run.predict(np.zeros((1, 8, 8))); run.figure(); "
        "assert 'mpi4py.MPI' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=120)


def test_commands_evaluate_label_and_export(path, run, test_set, tmp_path):
    images, labels = test_set
    scores = json.loads(command("evaluate", path, "--json"))
    assert scores.pop("n_samples") == len(labels)
    assert scores == {"run": str(path), **run.evaluate(*test_set)}
    assert "accuracy" in command("evaluate", path, "digits", "--split", "train")
    training = digits().train
    of_training = run.evaluate(*training.read(0, training.n))
    for words in (("--split", "train"), ("digits", "--split", "train")):
        scores = json.loads(command("evaluate", path, *words, "--json"))
        assert scores.pop("n_samples") == training.n != len(labels)
        assert scores == {"run": str(path), **of_training}
    asked = "f1_macro,{name: top_k, k: 3},confusion"
    values = run.evaluate(images, labels, metrics=["f1_macro", "top_3", "confusion"])["metrics"]
    assert json.loads(command("evaluate", path, "--metrics", asked, "--json"))["metrics"] == values
    shown = [line.split() for line in command("evaluate", path, "--metrics", f"[{asked}]").splitlines()]
    assert [line[0] for line in shown[:5]] == ["loss", "accuracy", "f1_macro", "top_3", "confusion"]
    assert float(shown[2][1]) == pytest.approx(values["f1_macro"], rel=1e-5)
    assert [[int(n) for n in line[-10:]] for line in shown[4:]] == values["confusion"]
    np.save(tmp_path / "new.npy", images[:300])
    command("label", path, tmp_path / "new.npy", "--out", tmp_path / "labels.csv")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "labels.csv").read_text())))
    assert [int(row["label"]) for row in rows] == run.predict(images[:300]).tolist()
    assert [int(row["sample"]) for row in rows] == list(range(300))
    assert "wrote" in command("export", path, "--to", tmp_path / "m.npz")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("evaluate", "RUN", "fashion"), "there is no 'fashion'"),
        (("evaluate", "RUN", "mnist_5k"), "the dataset must have samples of shape (1, 8, 8)"),
        (("evaluate", "RUN", "--metrics", "top_5,f1_makro"), "metrics[1].name: there is no 'f1_makro'; did you mean"),
        (("evaluate", "RUN", "--metrics", "top_11"), "metric top_k must have a k of at most the 10 classes"),
        (("evaluate", "RUN", "--metrics", "{name: ece, bins: 0}"), "metrics[0].bins must be a whole number >= 1"),
        (("evaluate", "RUN", "--metrics", "{name"), "the value '[{name]'"),
        (("evaluate", "nowhere"), "a run must be a folder with a config.yaml, got 'nowhere'"),
        (("label", "RUN", "README.md"), "a file of samples must end in one of"),
        (("label", "RUN", "nothing.npy"), "a file of samples must be sound, got 'nothing.npy'"),
        (("label", "RUN"), "it names no run, or no files"),
        (("export", "RUN"), "it names no run, or no file"),
        (("export", "RUN", "--to", "/proc/x.npz"), "can be written, got '/proc/x.npz'"),
    ],
)
def test_mistakes_are_told_in_one_sentence(path, words, said):
    printed = command(*(path if word == "RUN" else word for word in words), status=2)
    assert said in printed
    assert printed.count("\n") == 1


def test_run_without_a_description_of_its_samples_is_told(path, tmp_path):
    shutil.copytree(path, tmp_path / "old")
    (tmp_path / "old" / "input.json").unlink()
    with pytest.raises(UserError, match=r"a run must have input\.json"):
        psframe.open_run(tmp_path / "old").predict(np.zeros((1, 8, 8)))
