"""Runs one after the other in the ranks of one job (:func:`together`): starting one takes most of an emulated minute.

``python -m tests.knl.jobs RUNS`` is a rank. Each line of the file is a run's name, and options of ``psframe.train``.
"""

import gc
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path


def together(n: int, runs: Mapping[str, str]) -> str:
    """Return a script that trains on ``n`` ranks with the options of each run.

    What all ranks say is in ``$OUT/NAME.txt`` at the run's end, and the status in ``$OUT/NAME.status``, which is "1, 2"
    where they differ.
    """
    lines = "".join(f"{name} {options}\n" for name, options in runs.items())
    return f"cat > /tmp/runs <<'END'\n{lines}END\nmpirun -n {n} python -m tests.knl.jobs /tmp/runs\n"


def _main(runs: str) -> None:
    from mpi4py import MPI

    from psframe.train.command import main

    world, out = MPI.COMM_WORLD, Path(os.environ["OUT"])
    folder = Path(tempfile.gettempdir(), "said")
    folder.mkdir(exist_ok=True)
    config = [str(out / "config.yaml"), f"record.dir={out / 'runs'}"]
    for line in runs.splitlines():
        name, *options = shlex.split(line)
        _speak_to(folder / f"{name}.txt")
        status = main([*config, f"name={name}", *options])
        sys.stdout.flush(), sys.stderr.flush()
        gc.collect()  # on every rank before the first one looks what memory is free for the next run
        if statuses := world.gather(status):
            (out / f"{name}.status").write_text(", ".join(map(str, sorted(set(statuses)))) + "\n")
            shutil.copy(folder / f"{name}.txt", out)


def _speak_to(path: Path) -> None:
    """Let what this process writes be appended to a file."""
    with path.open("ab") as said:
        for fd in (1, 2):
            os.dup2(said.fileno(), fd)


if __name__ == "__main__":
    _main(Path(sys.argv[1]).read_text())
