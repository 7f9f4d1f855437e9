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
    words = [sys.executable, "-m", OWN.get(name, f"psframe.{name}"), *rest]
    if name in OVER_RANKS and "-n" in rest:
        words = _over_ranks(name, rest)
    sys.stdout.flush()
    try:
        os.execvp(words[0], words)
    except OSError:
        raise UserError(f"a launcher must be a program, got {words[0]!r}; mend {mpirun.VARIABLE}") from None


def _over_ranks(name: str, rest: Sequence[str]) -> list[str]:
    """Return the words that start a command over ranks, without its ``-n N``."""
    at = rest.index("-n")
    n, others = next(iter(rest[at + 1 :]), "nothing"), [*rest[:at], *rest[at + 2 :]]
    if not (n.isascii() and n.isdigit() and 0 < int(n) <= mpirun.MAX_RANKS):
        raise UserError(f"-n must be a number of ranks, got {n!r}; give psframe {name} -n 4 ...")
    mpirun.refuse_ranks(f"psframe {name} -n")
    return [*mpirun.launcher(None), "-n", n, sys.executable, "-m", f"psframe.{name}", *others]


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
