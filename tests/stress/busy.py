"""Run a command several times beside a neighbour that keeps every core busy for a share of the time.

    python -m tests.stress.busy [--times 10] [--share 0.5] -- bash launch/test.sh

Prints the exit status and the seconds of each run; exits with 1 if one failed. The neighbour works and rests for random
times of up to two seconds, by a seed that is printed.
"""

import argparse
import multiprocessing
import os
import random
import subprocess
import sys
import time

from tests.helpers.seeds import seeded

LONGEST_S = 2.0


def neighbour(seed: int, share: float) -> None:
    """Keep one core busy for a share of the time, for ever."""
    random.seed(seed)
    while True:
        period = random.uniform(0.1, LONGEST_S)
        end = time.monotonic() + share * period
        while time.monotonic() < end:
            pass
        time.sleep((1 - share) * period)


def main() -> int:
    """Run the command; return the exit status."""
    made = argparse.ArgumentParser(prog="python -m tests.stress.busy", description=__doc__.partition("\n")[0])
    made.add_argument("--times", type=int, default=10, help="runs, one after the other (default: 10)")
    made.add_argument("--share", type=float, default=0.5, help="of the time in which the cores are busy (default: 0.5)")
    made.add_argument("command", nargs="+")
    given = made.parse_args()
    seed, failed = seeded("neighbour").randrange(2**32), 0
    busy = [
        multiprocessing.Process(target=neighbour, args=(seed + core, given.share), daemon=True)
        for core in range(len(os.sched_getaffinity(0)))
    ]
    for process in busy:
        process.start()
    for number in range(given.times):
        began = time.monotonic()
        status = subprocess.call(given.command)
        failed += status != 0
        print(f"run {number + 1} of {given.times}: status {status}, {time.monotonic() - began:.0f} s", flush=True)
    for process in busy:
        process.terminate()
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
