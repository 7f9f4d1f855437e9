"""Command ``[mpirun -n N] python -m psframe.bench NAME`` (:func:`main`): runs one benchmark.

Start ``kernels``, ``threads``, ``tiers`` and ``torch`` alone, ``step``, ``straggler``, ``pipeline`` and ``recorder``
under mpirun, the others either way: alone, they start mpirun for one number of ranks after another.
"""

import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

from psframe.bench import sweep
from psframe.cluster import begin, mpirun
from psframe.cluster.process import guarded
from psframe.errors import UserError

ALONE = ("kernels", "threads", "tiers", "torch")
OVER_RANKS = ("step", "straggler", "pipeline", "recorder")
EITHER = ("collectives", "forward", "peers")
BENCHES = (*ALONE, *OVER_RANKS, *EITHER)


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    if argv and argv[0] in ("-h", "--help"):
        print(f"usage: python -m psframe.bench {'|'.join(BENCHES)} [--help]")
        return 0
    if not argv or argv[0] not in BENCHES:
        given = repr(argv[0]) if argv else "nothing"
        raise UserError(f"psframe.bench must be told what to measure, got {given}; choose {' or '.join(BENCHES)}")
    name, rest = argv[0], argv[1:]
    ranked = any(variable in os.environ for variable in mpirun.LAUNCHED)
    if name in EITHER and ranked and any(word.startswith(sweep.OPTIONS) for word in rest):
        mpirun.refuse_ranks(f"psframe.bench {name} with {', '.join(sweep.OPTIONS)}")
    if name in OVER_RANKS or (name in EITHER and ranked):
        return _over_ranks(name, rest)
    if name == "collectives":
        from psframe.bench import collective_sweep

        return collective_sweep.main(rest)
    bench = import_module(f"psframe.bench.{name}")
    return int(sweep.main(name, bench, rest) if name in EITHER else bench.main(rest))


def _over_ranks(name: str, argv: Sequence[str]) -> int:
    begin.over_ranks()
    from psframe.cluster import command

    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Python's handler would wait for an MPI call to return
    with begin.importing():
        bench = import_module(f"psframe.bench.{name}")
    return command.guarded(lambda argv: command.run(lambda cluster: bench.main(cluster, argv)), argv)


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))
