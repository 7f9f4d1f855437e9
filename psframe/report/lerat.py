"""Section on ``bench threads`` (:func:`sections`): threads of one process, and processes, as Lerat et al. 2022."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from psframe.report import paper, read, usage
from psframe.report.charts import Series, Style, lines
from psframe.report.html import Section, figure, heading, legend, note, paragraph, table
from psframe.report.read import Json
from psframe.report.scale import Axis, ranks_axis
from psframe.report.values import NONE, between, column, list_of, number, said, spread, table_of, text

KINDS = ("threads", "processes")
MAX_MODELS, MAX_USAGE = 8, 8

Row = Mapping[str, Any]


def sections(benches: Sequence[tuple[Path, Json]], notices: list[str]) -> list[Section]:
    drawings, legends, rows, beside, used = [], [], [], [], ""
    machines = []
    for path, bench in benches:
        machines.append(f"{text(bench.get('machine')) or 'unknown CPU'}, {text(bench.get('cores'), 9) or '?'} core(s)")
        for model, figures in list(table_of(bench.get("models")).items())[:MAX_MODELS]:
            valid = [row for row in list_of(table_of(figures).get("rows")) if row.get("kind") in KINDS and _count(row)]
            series = _series(valid)
            if series:
                counts = sorted({_count(row) or 1.0 for row in valid} | {1.0})
                best = Series("ideal", [(n, n) for n in counts], ideal=True)
                x = ranks_axis(counts, "threads or processes")
                drawings.append(lines("Speed-up", [*series, best], x, Axis("speed-up"), heading=text(model, 40)))
                legends += series
            rows += _rows(text(model, 40), valid)
            beside += _beside(text(model, 40), valid)
            used += _usage(path, text(model, 40), valid, notices, len(drawings))
    if not rows:
        return []
    body = paragraph(f"After {paper.LERAT}: speed-up over one CPU core on a 16-core machine.")
    body += note("Measured on: " + "; ".join(dict.fromkeys(machines)))
    if drawings:
        body += figure("figure-threads", _CAPTION, drawings, legend(legends))
    head = ["<model", "<kind", "n", "s/epoch", "quartiles", "speed-up", "accuracy", "<note"]
    if not any(row[-1] for row in rows):
        head, rows = head[:-1], [row[:-1] for row in rows]
    body += table(
        "table-threads", "Every measurement; n: threads of one process, or processes of one thread.", head, rows
    )
    body += _table_beside(beside)
    return [Section("threads", "Threads and processes", body + used)]


_CAPTION = (
    "Speed-up over one process with one thread, at one global batch: threads of one process, and processes with one "
    "thread each."
)


def _count(row: Row) -> float | None:
    return number(row.get("n"), 1)


def _series(rows: Sequence[Row]) -> list[Series]:
    series = []
    for place, kind in enumerate(KINDS):
        # one thread in one process is the first point of both lines, whatever its kind
        matching = [row for row in rows if row["kind"] == kind or _count(row) == 1]
        points = {(_count(row) or 1.0, s) for row in matching if (s := number(row.get("speedup"), 0))}
        if points:
            series.append(Series(kind, sorted(points), Style(place, 0, place)))
    return series


def _rows(model: str, rows: Sequence[Row]) -> list[list[str]]:
    seconds = [spread(row.get("epoch_s")) for row in rows]
    shown = column([quartiles[0] if quartiles else None for quartiles in seconds])
    lines = []
    for row, quartiles, median_s in zip(rows, seconds, shown, strict=True):
        accuracy, speedup = number(row.get("accuracy"), 0), number(row.get("speedup"), 0)
        lines.append(
            [
                model,
                text(row["kind"]),
                f"{_count(row):.0f}",
                median_s,
                between(quartiles),
                NONE if speedup is None else f"{speedup:.2f}",
                NONE if accuracy is None else f"{100 * accuracy:.1f} %",
                f"failed: {text(row.get('failed'), 200)}" if row.get("failed") else "",
            ]
        )
    return lines


def _beside(model: str, rows: Sequence[Row]) -> list[list[str]]:
    """Return the paper's speed-ups beside the best ones here."""
    known = next((values for name, values in paper.LERAT_SPEEDUP.items() if model.startswith(name)), None)
    if known is None:
        return []
    experiment, threads, processes = known
    lines = []
    for kind, theirs, at in (("threads", threads, NONE), ("processes", processes, str(paper.LERAT_PROCESSES))):
        ours = [(s, _count(row)) for row in rows if row["kind"] == kind and (s := number(row.get("speedup"), 0))]
        best = max(ours, default=None)
        here = [f"{best[1]:.0f}", f"{best[0]:.2f}", said(best[0] / (best[1] or 1), 2)] if best else [NONE] * 3
        lines.append([model, experiment, kind, at, f"{theirs:.2f}", *here])
    return lines


def _table_beside(rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    caption = (
        "The paper's speed-ups on 16 cores, and the best ones here, with how many threads or processes they are of."
    )
    head = ["<model", "<the paper's name", "<kind", "*n, paper", "*paper", "n, here", "here", "here, per n"]
    return table("table-lerat", caption, head, rows, f"{NONE}: the paper does not say how many threads these are.")


def _usage(path: Path, model: str, rows: Sequence[Row], notices: list[str], number_of: int) -> str:
    """Return usage figures of the runs that a bench names."""
    body = ""
    for place, row in enumerate(rows[:MAX_USAGE]):
        where = read.run_of(row)
        file = path.parent / where / "usage.jsonl"
        try:  # links are not followed
            there = where and file.is_file() and file.parent.resolve().is_relative_to(path.parent.resolve())
        except (OSError, RuntimeError):
            there = False
        if there:
            samples = list(read.rows(file, notices))
            run = read.Run(file.parent, {}, [], samples, 0)
            drawn = usage.drawn(run, f"figure-threads-usage-{number_of}-{place}", small=True)
            title = f"{model}, {text(row['kind'])}: {_count(row):.0f}"
            body += heading(title) + drawn if drawn else ""
    return body
