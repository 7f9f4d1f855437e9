"""``python -m psframe.report PATH ... [--out report.html]``: one page that needs no network."""

import sys
from collections.abc import Sequence
from pathlib import Path

from psframe.errors import UserError, reason
from psframe.parser import Parser
from psframe.record.view import say
from psframe.report import (
    collectives,
    forward,
    lerat,
    page,
    peers,
    places,
    read,
    runs,
    scaling,
    tables,
    traces,
    training,
    usage,
)
from psframe.report.html import Section
from psframe.report.read import Found

USAGE = "python -m psframe.report PATH [PATH ...] [--out report.html]"


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status, 2 for a mistake in it or where there is nothing to show."""
    try:
        parser = Parser(USAGE, "One self-contained HTML page of runs and benches.")
        parser.add_argument(
            "paths",
            nargs="+",
            metavar="PATH",
            help="run directories, folders of them or of bench collectives, JSON of benches",
        )
        parser.add_argument("--out", default="report.html", help="the page to write (default: report.html)")
        if "-h" in argv or "--help" in argv:
            say(parser.format_help())
            return 0
        arguments = parser.parse_args(list(argv))
        made, notices = report(arguments.paths)
        _write(arguments.out, made)
        for notice in notices:
            print(f"psframe: warning: {notice}", file=sys.stderr)
        say(printable(arguments.out))
        return 0
    except UserError as error:
        print(f"psframe: {error}", file=sys.stderr)
        return 2


def report(paths: Sequence[str]) -> tuple[str, list[str]]:
    """Return the page of what is at the paths, and what is to be said of it; UserError where nothing can be shown."""
    found = read.read(paths)
    sections = _sections(found)
    notices = list(dict.fromkeys(found.notices))
    if not sections:
        why = "; ".join(notices[:4]) or "it holds nothing that was measured"
        raise UserError(f"psframe.report must be given runs or benches, got nothing that can be shown ({why})")
    return page.whole(sections, notices, _shown(found)), notices


def _sections(found: Found) -> list[Section]:
    runs.label(found.runs)
    rows, machines = tables.read(found.tables, found.notices)
    if found.tables and not rows:
        found.notices.append("bench collectives' tables must have rows, got none that is whole")
    having = [run for run in found.runs if run.records or run.config]
    sections = [
        *runs.sections(having, found.notices),
        *training.sections(having),
        *scaling.sections(having),
        *places.sections(having),
        *usage.sections(found.runs),
        *collectives.sections(rows, machines),
        *lerat.sections(found.benches.get("threads", []), found.notices),
        *forward.sections(found.benches.get("forward", [])),
        *peers.sections(found.benches.get("peers", [])),
        *traces.sections(found.runs),
    ]
    for kind in found.benches:
        if not any(section.name == kind for section in sections):
            found.notices.append(f"a file of bench {kind} must have rows, got none that is whole")
    return sections


def _shown(found: Found) -> str:
    n_benches = sum(map(len, found.benches.values())) + len(found.tables)
    words = [f"{n} {name}{'s' if n > 1 else ''}" for n, name in ((len(found.runs), "run"), (n_benches, "bench")) if n]
    return " and ".join(words).replace("benchs", "benches")


def _write(name: str, made: str) -> None:
    try:
        Path(name).write_text(made, encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UserError(
            f"--out must be a file that can be written, got {printable(name)!r} ({reason(error)}); give another"
        ) from None


def printable(name: str) -> str:
    """Return a path as any terminal takes it."""
    return name.encode("utf-8", "replace").decode()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
