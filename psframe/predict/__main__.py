"""Command ``python -m psframe.predict CONFIG --ranks N,N --machine FILE`` (:func:`main`): predicted epoch times.

``--measure FILE`` writes a profile of this machine. ``--check`` predicts first, then trains, and adds both to the
profile.
"""

import sys
from argparse import Namespace
from collections.abc import Sequence

from psframe.bench.stats import claim, write
from psframe.cluster import mpirun
from psframe.cluster.parser import Parser
from psframe.cluster.process import guarded
from psframe.errors import UserError
from psframe.predict import alternatives, check, machine, measure, search, view
from psframe.predict.command import Asked, judged, warn
from psframe.predict.load import NONE
from psframe.record.view import say

USAGE = (
    "python -m psframe.predict CONFIG [key.path=value ...] --ranks N,N --machine NAME|FILE "
    "[--what-if KEY=V,V | --best | --check] [--json FILE], or --measure FILE"
)


def parser() -> Parser:
    made = Parser(USAGE, "How long an epoch would take, as modelled.")
    made.add_argument("config", nargs="?", help="a YAML file, in sync.mode sync_ps or allreduce")
    made.add_argument("overrides", nargs="*", help="key.path=value, as train.batch_size=128")
    made.add_argument("--ranks", default="2,4,8,16", help="numbers of ranks (default: 2,4,8,16)")
    made.add_argument("--machine", help=f"a profile: a file, or {', '.join(machine.names())}")
    made.add_argument("--link", help=f"what joins nodes: {', '.join(machine.links())} (default: the machine's)")
    made.add_argument("--per-node", type=int, help="ranks of a node (default: as many as it has cores)")
    made.add_argument("--hosts", type=int, help="nodes that are namespaces of this machine, and share its cores")
    one = made.add_mutually_exclusive_group()
    one.add_argument("--what-if", metavar="KEY=V,V", help=f"vary one of {', '.join(alternatives.KEYS)}")
    one.add_argument("--best", action="store_true", help="search ways to do it on so many cores, print the top five")
    one.add_argument("--check", action="store_true", help="train, too, and add what came out to the profile")
    one.add_argument("--measure", metavar="FILE", help="measure this machine, and write its profile")
    made.add_argument("--json", help="write the figures to this file, for psframe.report")
    made.add_argument("--mpirun", help=mpirun.HELP)
    return made


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    made = parser()
    if "-h" in argv or "--help" in argv:
        say(made.format_help())
        return 0
    arguments = made.parse_intermixed_args(list(argv))
    mpirun.refuse_ranks("psframe.predict")
    start = mpirun.launcher(arguments.mpirun)
    if arguments.measure:
        if arguments.config:
            raise UserError(f"--measure stands alone, got {arguments.config!r} beside it; leave that out")
        return _measure(start, arguments.measure)
    claim(arguments.json)
    return _predict(judged(arguments, start), arguments)


def _measure(start: Sequence[str], path: str) -> int:
    machine.claim(path)
    found = measure.machine(start, lambda what: print(f"measuring {what}", file=sys.stderr, flush=True))
    warn(NONE, found)
    machine.write(path, found)
    say(view.machine(found, path))
    return 0


def _predict(asked: Asked, arguments: Namespace) -> int:
    if arguments.check:
        asked = check.run(asked)
        write(arguments.json, view.plain(asked, search.ranks(asked)))
        return 0
    if arguments.best:
        found = search.best(asked)
    elif arguments.what_if:
        found = search.varied(asked, *alternatives.judged(arguments.what_if))
    else:
        found = search.ranks(asked)
    say(view.table(asked, found, best=arguments.best))
    write(arguments.json, view.plain(asked, found))
    return 0


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))
