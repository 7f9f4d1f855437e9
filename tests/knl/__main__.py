"""Run a command in an emulated Knights Landing: ``python -m tests.knl quadrant -- numactl -H``."""

import argparse
import shlex
import sys

from tests.knl.boot import MODES, Memory, missing, run


def main() -> int:
    """Read the command line, run, and print what the command wrote; the status is the command's own."""
    parser = argparse.ArgumentParser(prog="python -m tests.knl", description=__doc__)
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("command", nargs="+", help="a program with its arguments, or one word for bash")
    parser.add_argument("--timeout", type=float, default=300, metavar="S", help="seconds (default: %(default)s)")
    parser.add_argument("--ddr", type=int, default=Memory.ddr, metavar="MIB", help="default: %(default)s")
    parser.add_argument("--mcdram", type=int, default=Memory.mcdram, metavar="MIB", help="default: %(default)s")
    parser.add_argument(
        "--no-hmat", action="store_true", help="firmware tells of no speeds, and in cache mode of no cache"
    )
    given = parser.parse_args()
    if missing():
        parser.error(str(missing()))
    script = given.command[0] if len(given.command) == 1 else shlex.join(given.command)
    memory = Memory(given.ddr, given.mcdram, not given.no_hmat)
    ended = run(given.mode, script, timeout_s=given.timeout, memory=memory)
    print(ended.out, end="")
    if ended.status is None:
        print(ended.console, "timed out" if ended.timed_out else "the machine ended early", sep="\n", file=sys.stderr)
        return 124 if ended.timed_out else 1
    return ended.status


if __name__ == "__main__":
    sys.exit(main())
