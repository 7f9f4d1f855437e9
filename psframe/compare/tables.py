"""Tables of a comparison (:func:`write`): CSV, Markdown, and in the end the page."""

import csv
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from psframe.compare.grid import Point
from psframe.record import summary
from psframe.record.folder import chosen_file
from psframe.record.view import aligned, say
from psframe.report import make

Curves = Mapping[Point, Sequence[Sequence[dict[str, Any]]]]  #: records of each repeat of each point


def write(
    arguments: Namespace,
    curves: Curves,
    failed: dict[Point, list[str]],
    out: Path,
    last: bool,
) -> None:
    """Write the tables of the runs so far; the last time print them, and write the page."""
    done = {point: runs for point, runs in curves.items() if runs}
    if not done:
        return
    first = next(iter(done.values()))[0][-1]
    target = first["accuracy"] - 0.02 if arguments.target is None else arguments.target
    rows = {p: summary.middle([summary.row(records, target) for records in runs]) for p, runs in done.items()}
    labelled = [(point.label, row) for point, row in rows.items()]
    table = summary.cells(
        labelled,
        [(point.label, point.n_ranks) for point in failed if point not in rows],
        arguments.repeat > 1,
    )
    with chosen_file(out / "compare.csv", "w") as file:
        writer = csv.writer(file)
        keys = list(next(iter(rows.values())))
        writer.writerow(["run", *keys])
        writer.writerows([[point.label, *(row[key] for key in keys)] for point, row in rows.items()])
    lines = [" | ".join(cells) for cells in table]
    lines.insert(1, " | ".join(["---"] * len(table[0])))
    ends = [records[-1] for repeats in done.values() for records in repeats]
    machines = {str(record["simulated"]) for record in ends if "simulated" in record}
    note = "\n".join(
        [
            *[f"simulated on {name}: seconds are virtual" for name in sorted(machines)],
            *summary.notes(list(rows.values()), target),
            *summary.paying(labelled),
            *failures(failed, arguments.repeat),
        ]
    )
    with chosen_file(out / "compare.md", "w") as file:
        file.write("".join(f"| {line} |\n" for line in lines) + f"\n{note}\n")
    if last:
        page, _ = make.report([str(out)])
        with chosen_file(out / "report.html", "w") as file:
            file.write(page)
        say(f"\n{aligned(table)}\n\n{note}\n{out / 'compare.md'}, compare.csv, report.html")


def failures(failed: dict[Point, list[str]], repeat: int) -> Iterator[str]:
    """Yield a line for each point with a failed run, with the last reason."""
    for point, why in failed.items():
        times = f" ({len(why)} of {repeat} runs)" if repeat > 1 else ""
        yield f"failed: {point.named}{times}: {why[-1]}"
