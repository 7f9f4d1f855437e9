"""Command ``psframe export RUN --to FILE``, and files of tensors that other software reads (:func:`write`)."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from psframe.cluster.parser import Parser
from psframe.cluster.process import guarded
from psframe.errors import UserError, nearest, reason
from psframe.record.folder import chosen_file
from psframe.tensors import tensors as tensors_of

USAGE = "psframe export RUN --to FILE"
EXAMPLE = "psframe export runs/fashion-20261121-204643 --to fashion.safetensors"

Tensors = Mapping[str, np.ndarray]


def write(tensors: Tensors, path: str | Path) -> None:
    """Write named tensors to ``path``, in the format of its suffix, one of :data:`FORMATS`.

    Raises
    ------
    UserError
        Unknown suffix, missing package, or the file cannot be written.
    """
    target = Path(path)
    if target.suffix not in FORMATS:
        raise UserError(f"a file of tensors must end in one of these, got {target.name!r}; {nearest('', FORMATS)}")
    try:
        FORMATS[target.suffix](tensors, target)
    except OSError as error:
        raise UserError(f"tensors must go to a file that can be written, got {str(path)!r} ({reason(error)})") from None


def _safetensors(tensors: Tensors, path: Path) -> None:
    try:
        from safetensors.numpy import save
    except ImportError as error:
        raise UserError(
            f"writing .safetensors must have the package safetensors, got none ({reason(error)}); pip install "
            "safetensors, or write .npz"
        ) from None
    with chosen_file(path, "wb") as file:
        file.write(save(dict(tensors), {"format": "pt"}))


def _npz(tensors: Tensors, path: Path) -> None:
    by_name: dict[str, Any] = dict(tensors)
    with chosen_file(path, "wb") as file:
        np.savez(file, **by_name)


FORMATS: dict[str, Callable[[Tensors, Path], None]] = {".safetensors": _safetensors, ".npz": _npz}


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status. Raise UserError for a mistake in it."""
    parser = Parser(USAGE, "Write the tensors of a run's newest checkpoint to a file, by name.", EXAMPLE)
    parser.add_argument("run", nargs="?", help="the folder of a run")
    parser.add_argument("--to", help=f"the file; its suffix is the format: {', '.join(FORMATS)}")
    arguments = parser.parse_args(argv)
    if arguments.run is None or arguments.to is None:
        parser.error("it names no run, or no file: --to FILE")
    of_run = tensors_of(arguments.run)
    write(of_run, arguments.to)
    print(f"wrote {len(of_run)} tensors of {sum(array.size for array in of_run.values()):,} numbers to {arguments.to}")
    return 0


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))
