"""Command ``python -m psframe.report PATH ... [--out report.html]`` (:func:`main`): one page that needs no network."""

import sys
from collections.abc import Sequence

from psframe.cluster.parser import Parser
from psframe.cluster.process import guarded
from psframe.record.folder import refuse_inputs
from psframe.record.log import LOG
from psframe.record.view import say
from psframe.report.make import printable, report, write

USAGE = "python -m psframe.report PATH [PATH ...] [--out report.html]"
EXAMPLE = "python -m psframe.report runs --out report.html"


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status. Raise UserError for a mistake in it, or if there is nothing to show."""
    parser = Parser(USAGE, "Make one self-contained HTML page of runs and benchmarks.", EXAMPLE)
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="run directories, folders of them or of bench collectives, JSON of benches",
    )
    parser.add_argument("--out", default="report.html", help="the page to write (default: report.html)")
    arguments = parser.parse_args(argv)
    refuse_inputs(arguments.out, arguments.paths)
    page, notices = report(arguments.paths)
    write(arguments.out, page)
    for notice in notices:
        LOG.warning(notice, extra={"of": notice})
    say(printable(arguments.out))
    return 0


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))
