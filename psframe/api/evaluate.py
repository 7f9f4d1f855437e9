"""Command ``psframe evaluate RUN [DATASET]``: loss, accuracy and metrics of a run on a dataset (:func:`main`)."""

import json
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from psframe.api.runs import Run
from psframe.cluster.parser import Parser
from psframe.cluster.process import guarded
from psframe.config import registry, schema
from psframe.datasets import TABLE as DATASETS
from psframe.datasets.base import Dataset
from psframe.errors import UserError
from psframe.train.data import dataset_checks

USAGE = "psframe evaluate RUN [DATASET] [--split test|train] [--metrics NAME,...] [--json]"
EXAMPLE = "psframe evaluate runs/fashion-20261121-204643 '{name: hdf5, path: new.h5}' --metrics top_5,f1_macro"


def _arguments(argv: Sequence[str]) -> Namespace:
    parser = Parser(USAGE, "Compute loss, accuracy and metrics of a run's network on a dataset.", EXAMPLE)
    parser.add_argument("run", nargs="?", help="the folder of a run")
    parser.add_argument("dataset", nargs="?", help="a name, or {name: ..., its keys} (default: the run's)")
    parser.add_argument("--split", choices=("test", "train"), default="test", help="samples to take (default: test)")
    parser.add_argument(
        "--metrics", default="", help="metrics as record.metrics has them: top_5,'{name: ece, bins: 9}'"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args(argv)
    if arguments.run is None:
        parser.error("it names no run")
    return arguments


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status. Raise UserError for a mistake in it."""
    arguments = _arguments(argv)
    run, names = Run(arguments.run), arguments.metrics
    asked = schema.parse_value(names if names.startswith("[") else f"[{names}]")
    spec = run.config.dataset if arguments.dataset is None else schema.parse_value(arguments.dataset)
    images, labels = read(spec, arguments.split, run.trained.inputs.shape)
    scores = run.evaluate(images, labels, asked)
    if arguments.json:
        print(json.dumps({"run": str(run.path), "n_samples": len(labels), **scores}))
    else:
        values = scores.pop("metrics", {})
        print(shown({**scores, **values}))
    return 0


def shown(scores: Mapping[str, Any]) -> str:
    """Return a line for each score; a matrix has a line for each of its rows."""
    width = max(map(len, scores))
    lines = []
    for name, score in scores.items():
        rows = score if isinstance(score, list) and any(isinstance(row, list) for row in score) else [score]
        lines += [f"{name if not at else '':{width}}  {_numbers(row)}" for at, row in enumerate(rows)]
    return "\n".join(lines)


def _numbers(score: Any) -> str:
    if isinstance(score, list):
        return " ".join(map(_numbers, score))
    return "-" if score is None else f"{score:.6g}"


def read(spec: Any, split_name: str, shape: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return images (n, *shape) and labels (n,) of a split of a dataset; UserError if it has samples of another shape.

    ``spec`` is a name, or a mapping with the loader's keys.
    """
    plain = {"name": spec} if isinstance(spec, str) else spec
    if not isinstance(plain, dict) or "name" not in plain:
        raise UserError(f"a dataset must be a name, or {{name: ..., its keys}}, got {spec!r}; name one")
    dataset: Dataset = registry.bind("dataset", DATASETS, plain).taking(0)()
    dataset_checks.check(dataset)
    if list(dataset.shape) != list(shape):
        raise UserError(
            f"the dataset must have samples of shape {tuple(shape)}, as the run was trained on, got "
            f"{tuple(dataset.shape)}; give another dataset"
        )
    split = getattr(dataset, split_name)
    images, labels = dataset_checks.read(split, 0, split.n, tuple(dataset.shape), np.dtype(dataset.dtype), split_name)
    return images, labels


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))
