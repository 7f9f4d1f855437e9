"""Command ``psframe NAME ...`` (:func:`main`): one door to what ``python -m psframe.NAME`` opens, too."""

import os
import sys
from collections.abc import Sequence

import psframe
from psframe.cluster import mpirun
from psframe.cluster.process import guarded
from psframe.errors import UserError, nearest
from psframe.starter import COMMANDS, OVER_RANKS, OWN

WIDTH = max(map(len, COMMANDS)) + 2


def main() -> int:
    """Run the command of ``sys.argv``; return the exit status."""
    return guarded(lambda: _main(sys.argv[1:]))


def _main(argv: Sequence[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print(_usage())
        return 0
    if argv[0] == "--version":
        print(f"psframe {psframe.__version__}")
        return 0
    name, rest = argv[0], list(argv[1:])
    if name not in COMMANDS:
        raise UserError(f"psframe must be given a command, got {name!r}; {nearest(name, COMMANDS)}, or --help")
    if name in OVER_RANKS and "-n" in rest:
        at = rest.index("-n")
        n_ranks, others = next(iter(rest[at + 1 :]), "nothing"), [*rest[:at], *rest[at + 2 :]]
        mpirun.become(mpirun.over_ranks(f"psframe {name}", n_ranks, ["-m", f"psframe.{name}", *others]))
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", OWN.get(name, f"psframe.{name}"), *rest])


def _usage() -> str:
    lines = [f"  {name:{WIDTH}}{text}" for name, text in COMMANDS.items()]
    return "\n".join(
        [
            "usage: psframe COMMAND ...",
            "",
            "Train small convolutional networks on many-core CPUs, data-parallel, over MPI.",
            "",
            *lines,
            "",
            "`psframe COMMAND --help` has the options of each. train, doctor and bench take -n N, for N ranks.",
            "",
            "example: psframe train -n 4 config.yaml sync.mode=allreduce",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
