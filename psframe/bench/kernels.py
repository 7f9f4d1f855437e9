"""Benchmark ``python -m psframe.bench kernels`` (:class:`Bench`): ms, GFLOP/s and share of peak, layer by layer."""

from argparse import Namespace
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from psframe.bench import peak, torch_network
from psframe.bench.files import claim, write
from psframe.bench.layers import DIRECTIONS, Spent, work
from psframe.cluster.parser import Parser, counts
from psframe.config.registry import load
from psframe.errors import UserError
from psframe.memory.allocator import Allocator
from psframe.memory.arena import Arena, Keeping
from psframe.models import BUILT_IN
from psframe.nn.base import Layer, Pass
from psframe.nn.initial import initialize
from psframe.nn.network import Network
from psframe.nn.precision import TABLE
from psframe.nn.threads import Threads
from psframe.nn.timed import time_layers
from psframe.nn.workspace import Shape
from psframe.optim import SGD, Updater
from psframe.record.spread import spread
from psframe.record.view import aligned

#: by model: the shape of a sample, and the number of classes
INPUTS: dict[str, tuple[Shape, int]] = {
    "lenet": ((1, 28, 28), 10),
    "cifar_quick": ((3, 32, 32), 10),
    "har_cnn": ((9, 128), 6),
    "har_resnet": ((9, 128), 6),
    "resnet18": ((3, 64, 64), 10),
    "alexnet": ((3, 224, 224), 3),
    "alexnet_small": ((3, 32, 32), 10),
    "vgg16": ((3, 224, 224), 3),
    "vgg16_small": ((3, 32, 32), 10),
    "vgg16_bn_small": ((3, 32, 32), 10),
    "resnet8": ((3, 32, 32), 10),
    "resnet20": ((3, 32, 32), 10),
    "mobilenet_small": ((3, 32, 32), 10),
}
USAGE = (
    "python -m psframe.bench kernels [--model M,...] [--batch B,...] [--precision bf16] [--kernels winograd] "
    "[--against float32|direct|torch] [--warm] [--json FILE]"
)
EXAMPLE = "python -m psframe.bench kernels --model lenet --batch 64 --against torch"


def _arguments(argv: Sequence[str]) -> Namespace:
    parser = Parser(USAGE, "Measure the layers of a network on one rank.", EXAMPLE)
    parser.add_argument("--model", default="lenet", help="names of the zoo, or all (default: lenet)")
    parser.add_argument("--batch", default="64", help="samples a step (default: 64)")
    parser.add_argument("--input", help="C,H,W or C,T of a sample (default: what the model was made for)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--kernels", choices=("direct", "winograd", "blas"), default="direct")
    parser.add_argument("--seconds", type=float, default=2.0, help="to spend on each measurement (default: 2)")
    parser.add_argument("--precision", choices=tuple(TABLE), default="float32", help="as train.precision")
    parser.add_argument(
        "--against",
        choices=("torch", "float32", "direct"),
        help="measure in turn with PyTorch (with bf16, under its autocast), or with psframe in float32, or its direct "
        "kernels",
    )
    parser.add_argument("--warm", action="store_true", help="only compile, and keep what was compiled")
    parser.add_argument("--json", help="write the figures to this file")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status. Raise UserError for a mistake in it."""
    arguments = _arguments(argv)
    if arguments.precision != "float32" and arguments.kernels != "direct":
        raise UserError(
            f"--kernels must be direct for --precision {arguments.precision}, got {arguments.kernels}; give one of both"
        )
    if arguments.threads < 1:
        raise UserError(f"--threads must be at least 1, got {arguments.threads}; give a number of cores")
    threadpool_limits(arguments.threads, user_api="blas")
    models = list(BUILT_IN) if arguments.model == "all" else arguments.model.split(",")
    batches = _whole("--batch", arguments.batch)
    claim(arguments.json)
    reports = []
    for model in models:
        for batch in batches:
            bench = Bench(model, batch, arguments)
            if arguments.warm:
                print(f"{model}, batch {batch}: compiled in {bench.compiled_s:.1f} s", flush=True)
            else:
                reports.append(bench.report())
                print(describe(reports[-1]), flush=True)
    write(arguments.json, reports)
    return 0


def _whole(option: str, text: str) -> list[int]:
    numbers = counts(text)
    if not numbers:
        raise UserError(f"{option} must be whole numbers of at least 1, got {text!r}; write, say, {option} 16,64")
    return numbers


class Step:
    """Compiled training step of a network, on data given."""

    def __init__(self, layers: Sequence[Layer], shape: Shape, n_classes: int, batch: int, arguments: Namespace):
        self.network = Network(layers, shape, n_classes, precision=arguments.precision)
        allocator = Allocator()
        arena = Arena(self.network.layout, 1, allocator, keeping=Keeping(bfloat16=self.network.dtype == "uint16"))
        self.network.bind(arena, batch, allocator, arguments.kernels, Threads(arguments.threads))
        initialize(self.network, 0)
        arena.refresh_bf16()
        self.update = Updater(SGD(lr=0.001, momentum=0.9), arena)
        self.x = np.random.default_rng(0).standard_normal((batch, *self.network.input_shape), np.float32)
        self.labels = np.arange(batch) % n_classes
        self.pass_ = Pass(True, 0, 0, np.arange(batch))

    def __call__(self) -> None:
        """Run forward, backward, and an update with momentum."""
        self.network.gradients(self.x, self.labels, self.pass_)
        self.update(slice(0, None), self.network.arena.grads, 0.001 / len(self.x), 1)

    def time_layers(self) -> list[Spent]:
        """Time the active layers from now on; return their times."""
        timed = {index: Spent() for index, _ in self.network.active}
        time_layers(self.network, lambda index, layer: timed[index])
        return list(timed.values())


class Bench:
    """Training steps of one model at one batch size, on random data: psframe's, and others in turn with it."""

    def __init__(self, model: str, batch: int, arguments: Namespace):
        self.model, self.batch, self.arguments = model, batch, arguments
        build = load("--model", BUILT_IN, model)
        shape, self.n_classes = INPUTS.get(model, ((3, 32, 32), 10))
        self.shape = tuple(_whole("--input", arguments.input)) if arguments.input else shape

        def step(**changes: str) -> Step:
            layers = build(self.shape, self.n_classes)
            return Step(layers, self.shape, self.n_classes, batch, Namespace(**vars(arguments) | changes))

        self.step = step()
        key = {"float32": "precision", "direct": "kernels"}.get(arguments.against)
        self.plain = step(**{key: arguments.against}) if key else None
        began = perf_counter()
        self.step()
        self.step.network.evaluate(self.step.x, self.step.labels)
        self.compiled_s = perf_counter() - began

    def report(self) -> dict[str, Any]:
        """Measure, and return the figures for JSON."""
        steps: dict[str, Callable[[], None]] = {"psframe": self.step}
        against, precision = self.arguments.against, self.arguments.precision
        if self.plain:
            steps[f"psframe {against}"] = self.plain
        for form in torch_network.FORMATS if against == "torch" else ():
            layers, x, labels = self.step.network.layers, self.step.x, self.step.labels
            steps[f"torch {form}"] = torch_network.torch_step(
                layers, self.shape, x, labels, form, self.arguments.threads, precision
            )
        times = in_turn(steps, self.arguments.seconds)
        report: dict[str, Any] = {
            "model": self.model,
            "batch": self.batch,
            "input": list(self.shape),
            "threads": self.arguments.threads,
            "kernels": self.arguments.kernels,
            "precision": precision,
            "images_per_s": {name: spread([self.batch / s for s in seconds]) for name, seconds in times.items()},
        }
        rivals = [name for name in times if name != "psframe"]
        if rivals:
            # compare with the faster format, pair by pair
            best = min(rivals, key=lambda name: median(times[name]))
            pairs = zip(times[best], times["psframe"], strict=True)
            report["against"] = {"best": best, "ratio": spread([theirs / ours for theirs, ours in pairs])}
        return report | self._layers()

    def _layers(self) -> dict[str, Any]:
        """Time the layers within steps, those of both precisions in turn, and the peak between steps."""
        steps = [self.step, self.plain] if self.plain else [self.step]
        timed = [step.time_layers() for step in steps]
        peaks: list[float] = []
        rounds: list[list[list[dict[str, float]]]] = [[] for _ in steps]
        until = perf_counter() + self.arguments.seconds * len(steps)
        while perf_counter() < until or len(peaks) < 5:
            peaks.append(peak.gflops())
            for step, layers, times in zip(steps, timed, rounds, strict=True):
                step()
                times.append([spent.take() for spent in layers])
        top = median(peaks) * self.arguments.threads
        rows = [
            self._layer(number, *([layers[number] for layers in times] for times in rounds), top=top)
            for number in range(len(timed[0]))
        ]
        return {"peak_gflops": spread(peaks), "layers": rows}

    def _layer(self, number: int, rounds: list[dict[str, float]], *others: Any, top: float) -> dict[str, Any]:
        index, layer = self.step.network.active[number]
        row: dict[str, Any] = {"number": index, "layer": type(layer).__name__}
        costs = work(self.step.network, number, self.batch)
        for direction in DIRECTIONS:
            seconds = spread([r[direction] for r in rounds])
            gflops = costs[direction]["flops"] / seconds["median"] / 1e9
            row[direction] = {
                "ms": {key: 1e3 * value for key, value in seconds.items()},
                "gflops": gflops,
                "share_of_peak": gflops / top,
                "bytes": costs[direction]["bytes"],
            }
            for other in others:
                pairs = zip(other, rounds, strict=True)
                row[direction]["ratio"] = spread([theirs[direction] / ours[direction] for theirs, ours in pairs])
        return row


def in_turn(steps: dict[str, Callable[[], None]], seconds: float) -> dict[str, list[float]]:
    """Run steps in turn, over and over, for about ``seconds`` each; return the seconds of each by turn.

    A turn repeats a step for about 20 ms and records the mean, so that the machine's noise affects all alike.
    """
    repeats = {}
    for name, step in steps.items():
        step()
        began = perf_counter()
        step()
        repeats[name] = max(1, round(0.02 / (perf_counter() - began)))
    times: dict[str, list[float]] = {name: [] for name in steps}
    until = perf_counter() + seconds * len(steps)
    while perf_counter() < until or len(times["psframe"]) < 5:
        for name, step in steps.items():
            began = perf_counter()
            for _ in range(repeats[name]):
                step()
            times[name].append((perf_counter() - began) / repeats[name])
    return times


def describe(report: dict[str, Any]) -> str:
    """Format a report as text."""
    shape = "x".join(map(str, report["input"]))
    lines = [
        f"{report['model']} ({shape}), batch {report['batch']}, {report['threads']} thread(s), {report['kernels']}, "
        f"{report['precision']}"
    ]
    lines += [
        f"  {name:20} {rate['median']:9,.1f} images/s ({rate['low']:,.1f} to {rate['high']:,.1f})"
        for name, rate in report["images_per_s"].items()
    ]
    if "against" in report:
        ratio = report["against"]["ratio"]
        ratio = f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"
        lines.append(f"  psframe / {report['against']['best']}: {ratio}")
    lines.append(f"  this core multiplies and adds {report['peak_gflops']['median']:.1f} GFLOP/s in registers")
    table = [["layer", "", "ms", "GFLOP/s", "of peak", "MB", "ratio" * ("ratio" in report["layers"][0]["forward"])]]
    for row in report["layers"]:
        for direction in DIRECTIONS:
            figures = row[direction]
            rate = [f"{figures['gflops']:.1f}", f"{figures['share_of_peak']:.0%}"] if figures["gflops"] else ["", ""]
            table.append([f"{row['number']} {row['layer']}", direction, f"{figures['ms']['median']:.3f}", *rate,
                          f"{figures['bytes'] / 1e6:.2f}",
                          f"{figures['ratio']['median']:.2f}" if "ratio" in figures else ""])  # fmt: skip
    return "\n".join([*lines, aligned(table)]) + "\n"
