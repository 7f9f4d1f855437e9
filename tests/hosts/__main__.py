"""Run a command on the first of several hosts, which are network namespaces of this machine. Root alone may.

    python -m tests.hosts --hosts 2 --ranks 2 [--rate 1gbit] [--mpi openmpi] python -m psframe.compare CONFIG ...

Commands that start mpirun themselves (``psframe.compare``, ``psframe.bench``, ``psframe.run``) spread their ranks.
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys

from tests import hosts
from tests.helpers import launcher


def main():
    made = argparse.ArgumentParser(prog="python -m tests.hosts", description=__doc__.partition("\n")[0])
    made.add_argument("--hosts", type=int, default=2)
    made.add_argument("--ranks", default="2", help="of each host, as 2; or by host, as 1,3")
    made.add_argument("--rate", help="of each link, each way, as 1gbit (default: as fast as the machine copies)")
    made.add_argument("--mpi", choices=("mpich", "openmpi"), default="mpich")
    made.add_argument("command", nargs=argparse.REMAINDER)
    given = made.parse_args()
    mpi = launcher.installed(given.mpi) or sys.exit(f"no {given.mpi}: bash launch/test.sh installs it")
    if reason := hosts.missing(given.rate):
        sys.exit(reason)
    each = [int(word) for word in given.ranks.split(",")]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # and take the hosts away first
    with hosts.Hosts(given.hosts, given.rate) as several:
        spread = several.mpi(mpi, each * (given.hosts if len(each) == 1 else 1))
        mpirun = shlex.join([str(mpi.prefix / "bin" / "mpirun"), *spread.flags])
        environment = {**os.environ, **several.environment, "PSFRAME_MPIRUN": mpirun}
        return subprocess.run(several.on_first(given.command), env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
