"""Command ``psframe quickstart``: train on the digits that come with psframe (:func:`main`)."""

import sys
from collections.abc import Sequence
from pathlib import Path

from psframe.cluster import mpirun
from psframe.cluster.parser import Parser
from psframe.cluster.process import guarded

CONFIG = Path(__file__).with_name("quickstart.yaml")
USAGE = "psframe quickstart [-n N] [key.path=value ...]"
EXAMPLE = "psframe quickstart -n 8 sync.mode=allreduce"


def main(argv: Sequence[str]) -> int:
    """Start the training command over ranks, in place of this process."""
    parser = Parser(USAGE, "Train a small network on 1,797 digits, with the options of psframe train.", EXAMPLE)
    parser.add_argument("-n", dest="ranks", default="4", help="ranks (default: 4)")
    arguments, rest = parser.parse_known_args(argv)
    words = mpirun.over_ranks("psframe quickstart", arguments.ranks, ["-m", "psframe.train", str(CONFIG), *rest])
    print("+ " + " ".join(words), file=sys.stderr, flush=True)
    mpirun.become(words)


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))
