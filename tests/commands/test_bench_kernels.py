"""``python -m psframe.bench kernels``: what it measures, and what it says of mistakes."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from psframe.bench import kernels, layers, peak, torch_network
from psframe.models import BUILT_IN
from psframe.nn.base import Pass
from psframe.nn.blocking import blocking
from psframe.nn.timed import time_layers
from tests.helpers.forked import command


def bench(*arguments):
    return command("psframe.bench", *arguments, timeout_s=300)


def test_models_all_have_an_input():
    assert set(kernels.INPUTS) == set(BUILT_IN)


@pytest.mark.full
def test_table_and_json(tmp_path):
    path = tmp_path / "found.json"
    done = bench("kernels", "--model", "lenet", "--batch", "8", "--seconds", "0.2", "--json", str(path))
    assert done.returncode == 0, done.stderr
    assert "lenet (1x28x28), batch 8, 1 thread(s), direct" in done.stdout
    assert "2 Conv2d   forward" in done.stdout
    (found,) = json.loads(path.read_text())
    assert found["images_per_s"]["psframe"]["low"] <= found["images_per_s"]["psframe"]["median"]
    first = found["layers"][0]
    # LeNet's first convolution: 24 x 24 places, 20 of 25 weights; no gradient of the images
    assert first["forward"]["bytes"] == 4 * (8 * 28 * 28 + 8 * 24 * 24 * 20 + 520)
    for direction in ("forward", "backward"):
        flops = first[direction]["gflops"] * first[direction]["ms"]["median"] * 1e6
        assert flops == pytest.approx(2 * 8 * 24 * 24 * 20 * 25)
    peak_gflops = found["peak_gflops"]["median"]
    for row in found["layers"]:
        for direction in ("forward", "backward"):
            assert row[direction]["share_of_peak"] == pytest.approx(row[direction]["gflops"] / peak_gflops)
            assert row[direction]["ms"]["median"] > 0
    assert [row["layer"] for row in found["layers"]] == ["Conv2d", "MaxPool2d"] * 2 + ["Flatten", "Dense", "Dense"]


@pytest.mark.full
def test_fewer_products_are_measured_in_turn_with_the_direct_form():
    how = ("--model", "tests.helpers.tiny:deep", "--kernels", "winograd", "--against", "direct", "--input", "1,8,8")
    done = bench("kernels", "--batch", "8", *how, "--seconds", "0.1")
    assert done.returncode == 0, done.stderr
    assert "tests.helpers.tiny:deep (1x8x8), batch 8, 1 thread(s), winograd" in done.stdout
    assert "psframe / psframe direct: " in done.stdout


def test_warm_compiles_and_measures_nothing():
    done = bench("kernels", "--model", "lenet", "--batch", "8", "--warm")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("lenet, batch 8: compiled in ")
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "must be told what to measure, got nothing; choose kernels"),
        (("kernel",), "got 'kernel'; choose kernels"),
        (("kernels", "--model", "lenett"), "there is no 'lenett'; did you mean 'lenet'"),
        (("kernels", "--batch", "0"), "--batch must be whole numbers of at least 1, got '0'"),
        (("kernels", "--batch", "8,x"), "got '8,x'"),
        (("kernels", "--precision", "bf16", "--kernels", "winograd"), "--kernels must be direct for --precision bf16"),
        (("kernels", "--threads", "0"), "--threads must be at least 1, got 0"),
        (("kernels", "--input", "3,x"), "--input must be whole numbers"),
        (("kernels", "--input", "9,128"), "model lenet takes images"),
        (("kernels", "--speed", "9"), "unrecognized arguments: --speed 9"),
        (
            ("kernels", "--model", "lenet", "--batch", "8", "--seconds", "0.1", "--json", "/no/such/file"),
            "--json must name",
        ),
    ],
)
def test_mistakes_are_told_in_a_sentence(arguments, says):
    done = bench(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("psframe: ")
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not done.stdout, "what takes long was measured before"


def test_help_names_its_own_options():
    assert "--against" in bench("kernels", "--help").stdout


def arguments(**changed):
    given = {"input": None, "threads": 1, "kernels": "direct", "seconds": 0.1, "against": None, "precision": "float32"}
    return kernels.Namespace(**{**given, **changed})


def test_timed_layers_add_up_to_the_passes():
    made = kernels.Bench("lenet", 8, arguments())
    network = made.step.network
    timed = [layers.Spent() for _ in network.active]
    each = iter(timed)
    time_layers(network, lambda index, layer: next(each))
    network.gradients(made.step.x, made.step.labels, Pass(True, 0, 0, made.step.pass_.samples))
    taken = [layer.take() for layer in timed]
    assert all(seconds > 0 for of_layer in taken for seconds in of_layer.values())
    assert all(seconds == 0 for layer in timed for seconds in layer.take().values())


class Timed:
    """A step of a network whose layers take known seconds: twice as many backward, and more from layer to layer."""

    def __init__(self, step, scale):
        self.__dict__ |= vars(step)
        self.taken = [
            {direction: scale * (1 + n) * (1 + k) for k, direction in enumerate(layers.DIRECTIONS)}
            for n in range(len(self.network.active))
        ]

    def __call__(self):
        pass

    def time_layers(self):
        return [SimpleNamespace(take=taken.copy) for taken in self.taken]


@pytest.mark.parametrize("n_threads", [1, 2, 5])
def test_layers_rate_is_a_share_of_what_all_threads_can_do(monkeypatch, n_threads):
    made = kernels.Bench("lenet", 8, arguments())
    made.arguments = arguments(threads=n_threads, seconds=0)
    made.step, made.plain = Timed(made.step, 1e-3), Timed(made.step, 3e-3)
    rates = iter([9.0, 2.0, 4.0, 3.0, 8.0])
    monkeypatch.setattr(peak, "gflops", lambda: next(rates))
    found = made._layers()
    assert found["peak_gflops"] == {"median": 4.0, "low": 3.0, "high": 8.0}
    assert len(found["layers"]) == len(made.step.taken)
    for number, (row, taken) in enumerate(zip(found["layers"], made.step.taken, strict=True)):
        costs = layers.work(made.step.network, number, 8)
        for direction in layers.DIRECTIONS:
            gflops = costs[direction]["flops"] / taken[direction] / 1e9
            assert row[direction]["ms"] == pytest.approx(
                dict.fromkeys(("median", "low", "high"), 1e3 * taken[direction])
            )
            assert row[direction]["gflops"] == pytest.approx(gflops)
            assert row[direction]["share_of_peak"] == pytest.approx(gflops / (4 * n_threads))
            assert row[direction]["ratio"]["median"] == pytest.approx(3), "as many times as long in the other form"


def test_rate_is_compared_with_the_faster_of_two_rivals(monkeypatch):
    monkeypatch.setattr(torch_network, "torch_step", lambda *given: None)
    forms = [f"torch {form}" for form in torch_network.FORMATS]
    times = {"psframe": [0.5, 0.25, 1.0], forms[0]: [1.0, 1.0, 9.0], forms[1]: [4.0, 1.5, 3.0]}
    monkeypatch.setattr(kernels, "in_turn", lambda steps, seconds: {name: times[name] for name in steps})
    made = kernels.Bench("lenet", 8, arguments(against="torch"))
    monkeypatch.setattr(made, "_layers", dict)
    report = made.report()
    assert {name: rate["median"] for name, rate in report["images_per_s"].items()} == pytest.approx(
        {"psframe": 16, forms[0]: 8, forms[1]: 8 / 3}
    )
    assert report["against"]["best"] == forms[0]
    assert report["against"]["ratio"] == pytest.approx({"median": 4, "low": 3, "high": 6.5})  # of 2, 4 and 9


@pytest.mark.parametrize("seconds", [1e-5, 0.005, 0.05, 0.7])
def test_peak_grows_with_nothing_but_the_core(seconds, monkeypatch):
    """By a clock that goes on as the loop counts, whatever the wall says."""
    now, loop = [0.0], peak._loop

    def counted(lanes, n):
        now[0] += n / 4e9
        return loop(lanes, min(n, 1))

    monkeypatch.setattr(peak, "_loop", counted)
    n_lanes = len(blocking(1, 1).types[0])
    assert peak.gflops(seconds, lambda: now[0]) == pytest.approx(2 * n_lanes * peak.CHAINS * 4)


def test_peak_is_of_a_loop_that_computes_as_often_as_it_is_told():
    lanes, chains = blocking(1, 1).types[0], 0.1 * np.arange(peak.CHAINS)
    for n in range(9):
        assert peak._loop(lanes, n) == pytest.approx(len(lanes) * chains.sum(), rel=1e-5), n
        chains = 0.5 * chains + 1e-3
    assert peak.gflops(0.001) > 0  # it comes to an end


@pytest.mark.parametrize("model", ["lenet", pytest.param("har_cnn", marks=pytest.mark.full)])
def test_pytorch_learns_from_the_same_network(model):
    pytest.importorskip("torch", reason="PyTorch, which is measured against, is not installed")
    made = kernels.Bench(model, 8, arguments(against="torch"))
    for form in torch_network.FORMATS:
        step = torch_network.torch_step(made.step.network.layers, made.shape, made.step.x, made.step.labels, form, 1)
        for _ in range(2):
            step()
    report = made.report()
    assert set(report["images_per_s"]) == {"psframe", "torch contiguous", "torch channels_last"}
    assert report["against"]["ratio"]["median"] > 0
    assert "psframe / torch" in kernels.describe(report)
