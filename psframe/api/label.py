"""Command ``psframe label RUN FILE ...``: the classes of new samples, as CSV (:func:`main`)."""

import csv
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from psframe.api.runs import Run, softmax
from psframe.cluster.parser import Parser
from psframe.cluster.process import guarded
from psframe.config import untrusted, untrusted_hdf5
from psframe.datasets.image_folder import SUFFIXES, picture
from psframe.errors import UserError, reason
from psframe.record.folder import chosen_output, refuse_inputs
from psframe.record.inputs import Inputs

USAGE = "psframe label RUN FILE [FILE ...] [--out labels.csv]"
EXAMPLE = "psframe label runs/fashion-20261121-204643 new.npy --out labels.csv"
HEAD = ("file", "sample", "label", "probability")
HDF5 = (".h5", ".hdf5", ".hdf")
ARRAYS = ("images", "test_images", "test/images")  # of an HDF5 file, the first that is there


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status. Raise UserError for a mistake in it."""
    parser = Parser(USAGE, "Label samples by a run's network: pictures, .npy files, HDF5 files.", EXAMPLE)
    parser.add_argument("run", nargs="?", help="the folder of a run")
    parser.add_argument("files", nargs="*", metavar="FILE", help="a picture, or an array of samples (.npy, HDF5)")
    parser.add_argument("--out", default="-", help="the CSV file (default: standard output)")
    arguments = parser.parse_args(argv)
    if not arguments.files:
        parser.error("it names no run, or no files")
    run = Run(arguments.run)
    if arguments.out == "-":
        _write(run, arguments.files, sys.stdout)
        return 0
    refuse_inputs(arguments.out, arguments.files)
    try:
        with chosen_output(arguments.out) as file:
            _write(run, arguments.files, file)
    except (OSError, ValueError) as error:
        raise UserError(
            f"--out must be a file that can be written, got {arguments.out!r} ({reason(error)}); give another"
        ) from None
    return 0


def _write(run: Run, files: Sequence[str], out: Any) -> None:
    table = csv.writer(out, lineterminator="\n")
    table.writerow(HEAD)
    for name in files:
        for first, logits in _labelled(run, name):
            probabilities = softmax(logits)
            best = probabilities.argmax(axis=1)
            for row, label in enumerate(best.tolist()):
                table.writerow((name, first + row, label, f"{probabilities[row, label]:.6f}"))


def _labelled(run: Run, name: str) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the number of the first sample, and logits (n, n_classes), of each batch of a file."""
    try:
        for part, logits in run.trained.batches(samples(name, run.trained.inputs)):
            yield part.start, logits
    except UserError as error:
        raise UserError(f"{name!r} cannot be labelled: {error}") from None


def samples(name: str, inputs: Inputs) -> np.ndarray:
    """Return the samples in a file, in the units of the training data; UserError if it cannot be read.

    Pictures are scaled and cut as by ``dataset: image_folder``.
    """
    suffix = Path(name).suffix.lower()
    if suffix in SUFFIXES:
        channels, *size = inputs.shape
        if inputs.dtype != "uint8" or len(size) != 2 or channels not in (1, 3):
            raise UserError(f"pictures are for runs on uint8 images, got one on {inputs.dtype} {tuple(inputs.shape)}")
        return picture(name, (size[0], size[1]), "RGB" if channels == 3 else "L")[None]
    try:
        if suffix == ".npy":
            untrusted.opened(name).close()  # a regular file
            return np.lib.format.open_memmap(name, mode="r")  # no more than the file has, and no Python objects
        if suffix in HDF5:
            return _array(name)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise UserError(f"a file of samples must be sound, got {name!r} ({reason(error)}); mend it") from None
    kinds = ", ".join((".npy", *HDF5, *sorted(SUFFIXES)))
    raise UserError(f"a file of samples must end in one of {kinds}, got {name!r}; convert it")


def _array(name: str) -> np.ndarray:
    with untrusted_hdf5.opened(name) as file:
        array = next((array for key in ARRAYS if (array := untrusted_hdf5.array(file, key)) is not None), None)
        if array is None:
            raise UserError(f"an HDF5 file of samples must have one of {', '.join(ARRAYS)}, got {name!r}; name one so")
        return np.asarray(array[()])


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))
