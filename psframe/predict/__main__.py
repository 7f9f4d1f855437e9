"""Command ``python -m psframe.predict CONFIG --ranks N,N --machine FILE`` (:func:`main`): predicted epoch times.

``--measure FILE`` writes a profile of this machine. ``--check`` predicts first, then trains, and adds both to the
profile.
"""

import sys
from argparse import Namespace
from collections.abc import Sequence

from psframe.bench.files import claim, write
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
EXAMPLE = "python -m psframe.predict config.yaml --machine knl-7250-mcdram --ranks 16,64"


def parser() -> Parser:
    cli = Parser(USAGE, "Predict the time of an epoch with a model of the machine.", EXAMPLE)
    cli.add_argument("config", nargs="?", help="a YAML file")
    cli.add_argument("overrides", nargs="*", help="key.path=value, as train.batch_size=128")
    cli.add_argument("--ranks", default="2,4,8,16", help="numbers of ranks (default: 2,4,8,16)")
    cli.add_argument("--machine", help=f"a profile: a file, or {', '.join(machine.names())}")
    cli.add_argument("--link", help=f"what joins nodes: {', '.join(machine.links())} (default: the machine's)")
    cli.add_argument("--per-node", type=int, help="ranks of a node (default: as many as it has cores)")
    cli.add_argument("--hosts", type=int, help="nodes that are namespaces of this machine, and share its cores")
    group = cli.add_mutually_exclusive_group()
    group.add_argument("--what-if", metavar="KEY=V,V", help=f"vary one of {', '.join(alternatives.KEYS)}")
    group.add_argument("--best", action="store_true", help="search ways to do it on so many cores, print the top five")
    group.add_argument("--check", action="store_true", help="train, too, and add what came out to the profile")
    group.add_argument("--measure", metavar="FILE", help="measure this machine, and write its profile")
    cli.add_argument("--json", help="write the figures to this file, for psframe.report")
    cli.add_argument("--mpirun", help=mpirun.HELP)
    return cli


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    cli = parser()
    arguments = cli.parse_intermixed_args(argv)
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
    profile = measure.machine(start, lambda what: print(f"measuring {what}", file=sys.stderr, flush=True))
    warn(NONE, profile)
    machine.write(path, profile)
    say(view.machine(profile, path))
    return 0


def _predict(asked: Asked, arguments: Namespace) -> int:
    if arguments.check:
        asked = check.run(asked)
        write(arguments.json, view.plain(asked, search.ranks(asked)))
        return 0
    if arguments.best:
        predictions = search.best(asked)
    elif arguments.what_if:
        predictions = search.varied(asked, *alternatives.judged(arguments.what_if))
    else:
        predictions = search.ranks(asked)
    say(view.table(asked, predictions, best=arguments.best))
    write(arguments.json, view.plain(asked, predictions))
    return 0


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))
