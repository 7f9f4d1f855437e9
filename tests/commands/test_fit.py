"""``psframe.fit``: objects of a script over ranks that it starts, or over those of mpirun, and how it ends."""

import os
import subprocess
import sys
from pathlib import Path
from threading import Lock

import numpy as np
import psutil
import pytest

import psframe
from psframe.api import notebook
from psframe.api.objects import named
from psframe.nn.activations import Flatten
from psframe.nn.dense import Dense
from psframe.record import metrics
from tests.helpers import launcher, live, scripts
from tests.helpers.fits import given, samples
from tests.helpers.launcher import ROOT

QUICKSTART = str(ROOT / "psframe/starter/quickstart.yaml")


@pytest.fixture
def mpich(monkeypatch):
    mpi = launcher.installed("mpich") or pytest.skip("no mpich: bash launch/test.sh installs it")
    monkeypatch.setenv("PSFRAME_MPIRUN", str(mpi.prefix / "bin" / "mpirun"))
    return mpi


def test_ranks_log_at_the_level_that_is_asked_for(mpich, tmp_path, capfd):
    psframe.fit(**given(tmp_path, log_level="info"))
    told = [line for line in capfd.readouterr().err.splitlines() if line.startswith("psframe: info: rank 0")]
    assert any("epoch" in line for line in told), told
    with pytest.raises(psframe.UserError, match="log_level must be one of debug, info, warning, error, got 'loud'"):
        psframe.fit(**given(tmp_path, log_level="loud"))


@pytest.mark.full
def test_config_trains_to_the_bits_of_the_command(mpich, tmp_path):
    keys = ("train.epochs=1", "dataset.limit=300", f"record.dir={tmp_path}")
    run = psframe.fit(Path(QUICKSTART), *keys, ranks=np.int64(3), quiet=True, train={"seed": np.int32(0)})
    ended = launcher.train(mpich, 3, QUICKSTART, *keys, "name=other")
    assert ended.status == 0, ended
    (other,) = tmp_path.glob("other-*")
    one, two = (metrics.read(path)[0]["params_sha256"] for path in (run.path, other))
    assert one == two
    assert run.path.parent == tmp_path
    assert run.config.name == "quickstart"


OBJECTS = """
class Sgd:
    n_state = 0
    def __init__(self, *, lr: float = 0.1):
        self.lr = lr
    def update(self, params, grads, state, lr, step):
        params -= lr * grads

class Notes(psframe.Callback):
    def __init__(self):
        self.seen = []
    def on_epoch_end(self, control, record):
        self.seen.append(record["accuracy"])
        control.record(argv=len(sys.argv))

notes = Notes()
run = psframe.fit(**{**GIVEN, "optimizer": {"name": Sgd, "lr": 0.05}, "callbacks": [notes]})
if not run_by_mpirun or os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) == "0":
    tell(hashes=hashes(run), seen=notes.seen == list(run.epochs["accuracy"]), argv=list(run.epochs["argv"]),
         rate=run.config.optimizer["lr"], right=float((run.predict(X) == y).mean()), path=str(run.path))
"""


def test_objects_of_a_script_train_to_one_result_started_by_it_or_by_mpirun(mpi, tmp_path):
    (alone,) = scripts.told(scripts.run(mpi, tmp_path, "run_by_mpirun = False\n" + OBJECTS))
    path = scripts.write(tmp_path, "run_by_mpirun = True\n" + OBJECTS)
    (over,) = scripts.told(launcher.run(mpi, 3, [str(path)], cwd=tmp_path, PYTHONPATH=str(ROOT)))
    assert alone["hashes"] == over["hashes"]
    assert alone["seen"], "a callback on rank 0 has its state in the script at the end"
    assert alone["argv"] == over["argv"] == [1, 1]
    assert alone["rate"] == 0.05
    assert alone["right"] > 0.5
    assert alone["path"] != over["path"]


@pytest.mark.full
def test_torch_module_of_a_script_is_trained_and_comes_back(mpich, tmp_path):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    class Net(torch.nn.Module):
        def __init__(self, n_classes):
            super().__init__()
            self.last = torch.nn.Linear(36, n_classes)

        def forward(self, x):
            return self.last(x.flatten(1))

    run = psframe.fit(**given(tmp_path, model=Net))
    module = run.module()
    assert type(module).__name__ == "Net"
    np.testing.assert_array_equal(module.last.weight.detach().numpy(), run.tensors()["last.weight"])
    images, _ = samples(20)
    assert run.config.model["name"] == "torch"
    assert run.predict(images).shape == (20,)


def test_prediction_is_the_networks_own_by_hand(mpich, tmp_path):
    run = psframe.fit(**given(tmp_path))
    images, labels = samples(40)
    mean, std = (np.array(run.training.inputs.mean), np.array(run.training.inputs.std))
    x = (images.reshape(40, -1).astype(np.float64) - mean) / std
    tensors = run.tensors()
    logits = x @ tensors["1.Dense.weight"].T + tensors["1.Dense.bias"]
    np.testing.assert_array_equal(run.predict(images), logits.argmax(axis=1))
    by_hand = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(run.predict_proba(images), by_hand, rtol=1e-4, atol=1e-6)
    assert run.evaluate(images, labels)["accuracy"] == (logits.argmax(axis=1) == labels).mean()


@pytest.mark.full
def test_run_goes_on_and_has_its_best_epoch(mpich, tmp_path):
    run = psframe.fit(**given(tmp_path, checkpoint={"best": "accuracy"}, callbacks=[psframe.EarlyStopping("loss", 9)]))
    longer = run.resume(4)
    assert (longer.path, len(metrics.read(run.path))) == (run.path, 4)
    accuracies = [record["accuracy"] for record in metrics.read(run.path)]
    images, labels = samples(30)
    assert longer.best.evaluate(images, labels)["accuracy"] == max(accuracies)
    opened = psframe.open_run(run.path)
    with pytest.raises(psframe.UserError, match=r"give model=\.\.\. to this call"):
        opened.predict(images)
    again = psframe.open_run(run.path, model=[Flatten(), Dense(3)])
    np.testing.assert_array_equal(again.predict(images), longer.predict(images))
    assert len(metrics.read(again.resume(5, data=samples(), test_data=samples(30), quiet=True).path)) == 5


def function_of_two(input_shape, n_classes):
    raise RuntimeError("no layers today")


class Locked(psframe.Callback):
    def __init__(self):
        self.lock = Lock()


MISTAKES = {
    "key": ({"train": {"epoch": 3}}, ["train.epoch", "did you mean 'epochs'?"]),
    "ranks": ({"ranks": 0}, ["ranks must be a number of ranks, got 0"]),
    "labels": ({"data": (samples()[0], samples()[1].astype(float))}, ["labels must be integers", "float64"]),
    "lengths": ({"data": (samples()[0], samples(30)[1])}, ["one label a sample", "(60,)", "(30,)"]),
    "shapes": ({"test_data": (np.zeros((5, 7, 7)), np.zeros(5, int))}, ["test_data must be images", "(5, 7, 7)"]),
    "no test data": ({"test_data": None}, ["test_data must be images and labels", "NoneType"]),
    "two datasets": ({"dataset": "digits"}, ["one dataset", "'digits'"]),
    "dataset key": ({"dataset": {"flips": True}}, ["dataset.flips", "did you mean 'flip'?"]),
    "config": ({"config": 7}, ["a config must be a path", "int"]),
    "model": ({"model": 3}, ["model must be a name", "int"]),
    "not to be sent": ({"callbacks": [Locked()]}, ["can be pickled"]),
    "negative label": ({"data": (samples()[0], samples()[1] - 1)}, ["labels must be 0 to", "got -1"]),
    "channels last": ({"data": (np.zeros((60, 8, 8, 3)), samples()[1])}, ["channels lie last", "transpose"]),
    "no callback": ({"callbacks": [3]}, ["a callback must be an object with one of on_run_begin", "int"]),
    "a callback's class": ({"callbacks": [psframe.EarlyStopping]}, ["the class EarlyStopping"]),
    "a callback alone": ({"callbacks": psframe.EarlyStopping()}, ["callbacks must be a list", "EarlyStopping"]),
    "launcher": ({"mpirun": "no-such-mpirun"}, ["no-such-mpirun"]),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistake_is_a_sentence(mpich, tmp_path, case):
    changes, words = MISTAKES[case]
    arguments = given(tmp_path, **changes)
    with pytest.raises(psframe.UserError) as raised:
        psframe.fit(arguments.pop("config", None), **arguments)
    assert all(word in str(raised.value) for word in words), raised.value


def test_objects_below_patterns_have_names_of_their_own():
    first, second = (lambda: 1), (lambda: 2)
    config = {
        "placement": {"parameters": {"default": "ddr", "0.Conv2d.weight": first, "conv*": second, "conv?": first}}
    }
    plain, objects = named(config)
    names = {key: spec.partition(":")[2] for key, spec in plain["placement"]["parameters"].items() if ":" in spec}
    assert {key: objects[name] for key, name in names.items()} == {
        "0.Conv2d.weight": first,
        "conv*": second,
        "conv?": first,
    }
    assert all(name.isidentifier() for name in objects)


def test_error_on_a_rank_has_its_traceback(mpich, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # before a run has a folder, its incidents lie in that of the script
    with pytest.raises(psframe.RankError, match=r"rank \d: Traceback[\s\S]*function_of_two[\s\S]*no layers today"):
        psframe.fit(**given(tmp_path, model=function_of_two))


def test_callback_of_the_script_watches_and_asks_for_nothing(mpich, tmp_path):
    class Watch(psframe.Callback):
        in_script = True

        def __init__(self, asks):
            self.asks, self.seen, self.handle = asks, [], open(os.devnull)  # noqa: SIM115

        def on_epoch_end(self, control, record):
            self.seen.append((control.epoch, os.getpid()))
            if self.asks:
                control.stop()

    watch = Watch(False)
    psframe.fit(**given(tmp_path, callbacks=[watch]))
    assert watch.seen == [(1, os.getpid()), (2, os.getpid())]
    with pytest.raises(psframe.UserError, match="asks for nothing"):
        psframe.fit(**given(tmp_path, callbacks=[Watch(True)]))
    assert not [child for child in psutil.Process().children(recursive=True) if live.runs(child, "psframe.api.rank")]


class Tracker:
    def __init__(self):
        self.config, self.logged = {}, []

    def log_params(self, config):
        self.config.update(config)

    def log_metrics(self, numbers, step):
        self.logged.append((step, numbers["accuracy"], numbers["f1_macro"]))


def test_logger_sends_config_and_numbers(mpich, tmp_path):
    tracker = Tracker()
    record = {"dir": str(tmp_path / "runs"), "metrics": ["f1_macro"]}
    psframe.fit(**given(tmp_path, callbacks=[psframe.Logger(tracker)], record=record))
    assert tracker.config["train.epochs"] == 2
    assert [step for step, *_ in tracker.logged] == [1, 2]


def test_import_needs_neither_mpi_nor_numpy():
    code = "import sys, psframe; print([m for m in ('mpi4py', 'numpy', 'numba', 'yaml') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_curve_of_a_notebook_has_both_losses_and_the_place():
    assert not notebook.is_here()
    curve = notebook.Curve()
    curve._draw = lambda: None
    curve.epochs, curve.n_steps = 5, 7
    assert "<svg" not in curve.page()
    for epoch in (1, 2):
        curve.epoch({"epoch": epoch, "loss": 1 / epoch, "test_loss": None, "accuracy": 0.5, "epoch_s": 1.0})
    page = curve.page()
    assert page.count("<svg") >= 2
    assert "2 epochs are done, of 5; 0 of 7 steps of the next one" in page
