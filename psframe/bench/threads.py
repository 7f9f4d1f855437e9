"""Benchmark ``python -m psframe.bench threads`` (:func:`main`): threads and processes against one core.

The single-machine part of Lerat, Mahmoudi and Mahmoudi 2022, "Distributed deep learning: from single-node to multi-node
architecture": AlexNet and VGG16 on 3 classes of 224x224 pictures, SGD with momentum. The global batch is the same for
any number of threads or processes, so every run does the same work. Each is a run of psframe.train that records its
usage.
"""

import json
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from psframe.bench import sweep
from psframe.cluster import mpirun
from psframe.cluster.parser import Parser, counts, no_folder
from psframe.errors import UserError
from psframe.memory.topology import read
from psframe.record.folder import chosen_file
from psframe.record.spread import spread
from psframe.record.view import aligned, say

USAGE = (
    "python -m psframe.bench threads [--model M,M] [--counts N,N] [--samples M=N,...] [--batch B] [--data FOLDER] "
    "[--epochs E] [--repeat K] [--out DIR] [--mpirun CMD]"
)
EXAMPLE = "python -m psframe.bench threads --counts 1,2 --out threads"
SHAPE, CLASSES = (3, 224, 224), 3
#: synthetic training pictures: about a minute per epoch on one core
SAMPLES = {"alexnet": 320, "vgg16": 48}
FILE = "threads.json"


def parser() -> Parser:
    cli = Parser(USAGE, "Measure threads in one process, and processes, against one core.", EXAMPLE)
    cli.add_argument("--model", default=",".join(SAMPLES), help=f"of {', '.join(SAMPLES)} (default: both)")
    cli.add_argument("--counts", help="of threads and of processes (default: powers of two, to the cores there are)")
    cli.add_argument("--samples", help="made-up training pictures (default: 320 for alexnet, 48 for vgg16)")
    cli.add_argument("--batch", type=int, default=16, help="samples a step, of all together (default: 16)")
    cli.add_argument("--data", help="a folder with a folder of pictures a class (default: made-up pictures)")
    cli.add_argument("--epochs", type=int, default=3, help="of each run (default: 3)")
    cli.add_argument("--repeat", type=int, default=1, help="runs of each, in turn (default: 1)")
    cli.add_argument("--out", help="a new folder for the runs and the figures (default: threads-TIME)")
    cli.add_argument("--mpirun", help=mpirun.HELP)
    return cli


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status: 1 if a run failed."""
    cli = parser()
    arguments = cli.parse_args(argv)
    mpirun.refuse_ranks("psframe.bench threads")
    _check(arguments)
    start, topology = mpirun.launcher(arguments.mpirun), read("/")
    out = Path(arguments.out or time.strftime("threads-%Y%m%d-%H%M%S"))
    configs = {model: _config(arguments, model, out) for model in arguments.models}
    rows: dict[tuple[str, str, int], dict[str, Any]] = {}
    for repeat in range(arguments.repeat):
        for model, config in configs.items():
            for kind, n in _runs(arguments.numbers):
                row = rows.setdefault((model, kind, n), {"kind": kind, "n": n, "taken": []})
                if "failed" not in row:
                    _run(arguments, start, config, row, out / "runs" / f"{model}-{kind}-{n}-{repeat}", out)
    models: dict[str, list[dict[str, Any]]] = {model: [] for model in arguments.models}
    for (model, _, _), row in rows.items():
        models[model].append(row)
    compared = {model: {"global_batch": arguments.batch, **_compared(of_model)} for model, of_model in models.items()}
    report = {"bench": "threads", "machine": topology.cpu, "cores": len(topology.cores), "models": compared}
    _put(out / FILE, json.dumps(report, indent=1) + "\n")
    say(f"\n{table(report)}\n\n{out / FILE}; python -m psframe.report {out} draws it")
    return int(any("failed" in row for row in rows.values()))


def _check(arguments: Namespace) -> None:
    """Parse and check the options; raise UserError for a mistake."""
    for name in ("batch", "epochs", "repeat"):
        if getattr(arguments, name) < 1:
            raise UserError(f"--{name} must be 1 or more, got {getattr(arguments, name)}; give 1")
    arguments.models = arguments.model.split(",")
    for model in arguments.models:
        if model not in SAMPLES:
            raise UserError(f"--model must name some of {', '.join(SAMPLES)}, got {model!r}; give one of these")
    arguments.numbers = sweep.counts(arguments.counts, "--counts")
    if 1 not in arguments.numbers:
        arguments.numbers.insert(0, 1)  # the baseline of all others
    for n in arguments.numbers:
        if arguments.batch % n:
            raise UserError(
                f"--batch must be shared evenly by all --counts, got {arguments.batch} for {n}; give others"
            )
    arguments.of_model = dict(SAMPLES)
    for part in (arguments.samples or "").split(",") if arguments.samples else ():
        model, _, number = part.rpartition("=")
        if model not in ("", *SAMPLES) or len(parsed := counts(number)) != 1 or parsed[0] < arguments.batch:
            raise UserError(
                f"--samples must be {arguments.batch} or more, got {part!r}; write, say, --samples vgg16=64"
            )
        arguments.of_model |= dict.fromkeys([model] if model else SAMPLES, parsed[0])
    if arguments.data and not Path(arguments.data).is_dir():
        raise UserError(f"--data must be a folder of pictures, got {arguments.data!r}; check the path")


def _config(arguments: Namespace, model: str, out: Path) -> Path:
    """Write the config of all runs of a model; return its path."""
    samples = arguments.of_model[model]
    made_up = {"name": "synthetic", "shape": [*SHAPE], "classes": CLASSES, "samples": samples}
    pictures = {"name": "image_folder", "path": str(Path(arguments.data or ".").resolve()), "size": [*SHAPE[1:]]}
    config = {
        "model": model,
        "dataset": pictures if arguments.data else made_up,
        "train": {"epochs": arguments.epochs},
        "optimizer": {"name": "sgd", "lr": 0.001, "momentum": 0.9},
        "sync": {"mode": "allreduce"},
        "checkpoint": {"every_epochs": 0},
        "record": {"usage": True},
    }
    path = out / f"{model}.yaml"
    try:
        out.mkdir(parents=True, exist_ok=True)
        if (out / "runs").exists():
            raise UserError(f"--out must be a new folder, got {str(out)!r}, which holds runs; give another")
    except OSError as error:
        raise no_folder(out, error) from None
    _put(path, yaml.safe_dump(config, sort_keys=False))
    return path


def _put(path: Path, said: str) -> None:
    try:
        with chosen_file(path, "w") as file:
            file.write(said)
    except OSError as error:
        raise no_folder(path.parent, error) from None


def _runs(numbers: Sequence[int]) -> Iterator[tuple[str, int]]:
    """Yield every run: one core once, then threads and processes in turn."""
    yield "threads", 1
    for n in numbers:
        if n > 1:
            yield "threads", n
            yield "processes", n


def _run(arguments: Namespace, start: Sequence[str], config: Path, row: dict[str, Any], where: Path, out: Path) -> None:
    """Train once, and add the figures to the row."""
    n_ranks, n_threads = (1, row["n"]) if row["kind"] == "threads" else (row["n"], 1)
    keys = (f"train.threads={n_threads}", f"train.batch_size={arguments.batch // n_ranks}")
    say(f"{config.stem}: {row['n']} {row['kind'] if row['n'] > 1 else 'core'}")
    records, complaint = sweep.train(start, n_ranks, str(config), keys, where)
    if complaint:
        row["failed"] = complaint
        say(f"  failed: {complaint}")
        return
    row["taken"] += [record["epoch_s"] for record in records]
    row["accuracy"] = records[-1]["accuracy"]
    row["samples"] = records[-1]["samples_used"]
    row["run"] = str(next(where.iterdir()).relative_to(out))
    say(f"  {spread(row['taken'])['median']:.2f} s an epoch")


def _compared(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a model's rows, with their speed-ups over one core."""
    base = rows[0]
    base_s = spread(base["taken"])["median"] if base["taken"] else None
    compared = []
    for row in rows:
        entry = {key: value for key, value in row.items() if key != "samples"}
        if row["taken"]:
            entry["epoch_s"] = spread(row["taken"])
            entry["speedup"] = base_s / entry["epoch_s"]["median"] if base_s else None
        compared.append(entry)
    return {"n_train": base.get("samples"), "rows": compared}


def table(report: dict[str, Any]) -> str:
    """Format a report as text."""
    lines = [["model", "", "count", "s an epoch", "quartiles", "speed-up", ""]]
    for model, figures in report["models"].items():
        for row in figures["rows"]:
            kind = row["kind"] if row["n"] > 1 else "one core"
            if "epoch_s" not in row:
                lines.append([model, kind, str(row["n"]), "failed", "", "", ""])
                continue
            seconds = row["epoch_s"]
            cells = [f"{seconds['median']:.2f}", f"{seconds['low']:.2f} to {seconds['high']:.2f}"]
            speedup = f"{row['speedup']:.2f}" if row["speedup"] else ""
            lines.append([model, kind, str(row["n"]), *cells, speedup, ""])
    return aligned(lines)
