"""Command ``psframe why RUN`` (:func:`main`): what went wrong in a run, or makes it slow, and what to do."""

import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from psframe.cluster.parser import Parser
from psframe.cluster.process import guarded
from psframe.doctor.why.cause import Cause
from psframe.doctor.why.causes import causes
from psframe.doctor.why.evidence import Evidence, head, shown
from psframe.doctor.why.expected import expected
from psframe.doctor.why.healthy import of_run
from psframe.errors import UserError, reason
from psframe.record import incident
from psframe.record.view import say

USAGE = "psframe why RUN|FILE [--all] [--stacks] [--machine PROFILE]"
EXAMPLE = "psframe why runs/fashion-20261121-204643"
TOGETHER_S = 30.0  # between the files of one incident, at most
SHOWN = 3  # causes, without --all
SURVIVED = ("asked", "late")  # reasons of incidents after which a job goes on


def parser() -> Parser:
    cli = Parser(USAGE, "Tell what went wrong in a run, or makes it slow, and what to do.", EXAMPLE)
    cli.add_argument("run", nargs="?", help="the folder of a run, or the file of an incident")
    cli.add_argument("--all", action="store_true", help="all incidents, and all causes; without, the last incident")
    cli.add_argument("--machine", help="compare an epoch with what the model of this profile of a machine expects, too")
    cli.add_argument("--stacks", action="store_true", help="the lines of Python that each rank was in")
    return cli


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status: 0, also where no cause is found. UserError for a mistake in it."""
    cli = parser()
    arguments = cli.parse_args(argv)
    if arguments.run is None:
        cli.error("it names no run")
    path = Path(arguments.run)
    incidents = [[path]] if os.path.isfile(path) else _incidents(path)
    for files in incidents if arguments.all else incidents[-1:]:
        _tell(files, path, arguments.all, arguments.stacks)
    if not incidents:
        found = of_run(path)
        say("\n".join([f"{shown(str(path))}: no incident", *_lines(found, arguments.all)]))
    if arguments.machine:
        compared = expected(path, arguments.machine)
        lines = _lines([compared.cause], all_causes=True) if compared.cause else []
        say("\n".join(["", f"{shown(str(path))}: {compared}", *lines]))
    return 0


def _incidents(path: Path) -> list[list[Path]]:
    """Return a run's incidents, the oldest first, each as files of about one time: nodes count their own.

    Of a run whose disk was full, they lie elsewhere.
    """
    try:
        numbered = incident.found(path)
        heads = {file: (head(file), n) for n, files in enumerate(numbered) for file in files}
        heads |= {file: (head(file), len(numbered)) for file in incident.aside(path)}
    except OSError as error:
        raise UserError(
            f"why must be given the folder of a run, got {str(path)!r} ({reason(error)}); check the path"
        ) from None
    groups: list[list[Path]] = []
    last: dict[str, list[Path]] = {}  # group of each kind, of which another one says nothing
    for file in sorted(heads, key=lambda file: (heads[file][0].time, heads[file][1])):
        of, node = heads[file][0], incident.node(file)
        kind = of.reason if of.reason in SURVIVED else "fault"
        group = last.get(kind)
        if not group or node in map(incident.node, group) or of.time - heads[group[0]][0].time > TOGETHER_S:
            group = last[kind] = []
            groups.append(group)
        group.append(file)
    return [sorted(group, key=incident.node) for group in groups]


def _tell(files: list[Path], path: Path, all_causes: bool, stacks: bool) -> None:
    evidence = Evidence(files)
    found = causes(evidence)
    if not found and evidence.first.reason == "asked" and path not in files:
        with suppress(UserError):  # a run without records
            found = of_run(path)
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(min(max(evidence.first.time, 0.0), 2e10)))
    head = f"{shown(str(files[0]))}, {at}, {shown(evidence.first.reason, 20)}: {evidence.message}"
    lines = [head, *_lines(found, all_causes)]
    if stacks:
        for rank in evidence.ranks:
            lines += ["", f"{rank}: {rank.doing()}", *(f"    {frame}" for frame in rank.frames[:40])]
    say("\n".join(lines))


def _lines(found: Sequence[Cause], all_causes: bool) -> list[str]:
    """Return causes as text; those that weigh far less than the first one are left out."""
    kept = [cause for cause in found if all_causes or cause.weight > 0.6 * found[0].weight]
    if not kept:
        return ["", "no cause found"]
    lines = []
    for number, cause in enumerate(kept if all_causes else kept[:SHOWN], 1):
        lines += ["", f"{number}. {cause.sentence}", *(f"   - {line}" for line in cause.evidence)]
        lines += [f"   To do: {cause.advice}"] if cause.advice else []
    return lines


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))
