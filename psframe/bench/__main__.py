"""``python -m psframe.bench kernels``, ``mpirun -n N python -m psframe.bench step|epoch|straggler``: what it costs."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from psframe.errors import UserError

#: those that run over ranks
OVER_RANKS = ("step", "epoch", "straggler")
BENCHES = ("kernels", *OVER_RANKS)


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status, 2 for a mistake in it."""
    try:
        if argv and argv[0] in ("-h", "--help"):
            print(f"usage: python -m psframe.bench {'|'.join(BENCHES)} [--help]")
            return 0
        if not argv or argv[0] not in BENCHES:
            given = repr(argv[0]) if argv else "nothing"
            raise UserError(f"psframe.bench must be told what to measure, got {given}; choose {' or '.join(BENCHES)}")
        if argv[0] in OVER_RANKS:
            return _over_ranks(argv[0], argv[1:])
        from psframe.bench import kernels

        return kernels.main(argv[1:])
    except UserError as error:
        if os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0")) == "0":
            print(f"psframe: {error}", file=sys.stderr)
        return 2


def _over_ranks(name: str, argv: Sequence[str]) -> int:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise UserError(f"bench {name} needs an MPI, got none ({error}); pip install mpich, or load one") from None
    from psframe.affinity import limit_threads

    limit_threads(MPI.COMM_WORLD)  # before anything imports NumPy
    from psframe.command import guarded, run

    bench = import_module(f"psframe.bench.{name}")
    return guarded(lambda argv: run(lambda cluster: bench.main(cluster, argv)), argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
