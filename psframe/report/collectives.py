"""Section on collectives by ranks, method, memory and container (:func:`sections`), as Woo et al. 2020, Figs. 8-11."""

from collections.abc import Sequence

from psframe.report import html, paper, woo
from psframe.report.charts import Series, Style, lines
from psframe.report.html import Section, figure, legend, note, paragraph
from psframe.report.scale import Axis, time_axis
from psframe.report.tables import METHODS, OPERATIONS, Row, environment
from psframe.report.values import size

FIGURES = {"bcast": "Figure 8", "gather": "Figure 9", "allreduce": "Figure 10"}


def sections(rows: Sequence[Row], machines: Sequence[str]) -> list[Section]:
    if not rows:
        return []
    body = paragraph(
        f"After {paper.WOO}: one Xeon Phi with 68 cores. Seconds are the slowest rank's, medians over repetitions "
        "with quartiles."
    )
    body += note("Measured on: " + "; ".join(machines) if machines else "")
    for operation in OPERATIONS:
        matching = [row for row in rows if row.operation == operation]
        sizes = sorted({row.n_bytes for row in matching}, reverse=True)
        body += html.heading(paper.NAMES[operation]) if matching else ""
        for number, n_bytes in enumerate(sizes[:4]):
            name = f"figure-{operation}" + (f"-{number + 1}" if number else "")
            body += _figure(name, operation, n_bytes, [row for row in matching if row.n_bytes == n_bytes])
        body += note(f"The 4 largest of {len(sizes)} sizes are drawn." if len(sizes) > 4 else "")
    return [Section("collectives", "Collective operations", body + woo.tables(rows))]


def _figure(name: str, operation: str, n_bytes: float, rows: Sequence[Row]) -> str:
    seconds = [second for row in rows for second in row.seconds]
    x = Axis("ranks", base=2, whole=True, shared=[float(row.n_ranks) for row in rows])
    y = time_axis("time of a call", shared=[min(seconds), max(seconds)])
    drawings: list[str] = []
    all_series: list[Series] = []
    hbw = any(row.memory == "hbw" for row in rows)
    places = sorted({(row.environment, row.mode) for row in rows})
    small = len(places) > 1
    for env, mode in places:
        series = _series([row for row in rows if (row.environment, row.mode) == (env, mode)], 2 if hbw else 0)
        all_series += series
        heading = ", ".join(filter(None, (environment(env), mode)))
        drawings.append(lines(paper.NAMES[operation], series, x, y, small, heading))
    all_series.sort(key=lambda curve: (curve.style.colour, curve.style.dash))
    caption = (
        f"{paper.NAMES[operation]} of {size(n_bytes)} a rank against ranks, both on log scales, by environment "
        f"(the paper's {FIGURES[operation]}: {paper.WOO_BYTES[operation]}). Colour and mark: method; line: memory."
    )
    return figure(name, caption, drawings, legend(all_series), small)


def _series(rows: Sequence[Row], plain: int) -> list[Series]:
    """Return a line per method and memory; ``plain``: the dashes of default memory."""
    series = []
    for method, memory in sorted({(row.method, row.memory) for row in rows}):
        matching = sorted(
            (row for row in rows if (row.method, row.memory) == (method, memory)), key=lambda row: row.n_ranks
        )
        colour = METHODS.index(method) if method in METHODS else len(METHODS)
        series.append(
            Series(
                f"{method.replace('_', ' ')}, {memory}",
                [(float(row.n_ranks), row.seconds[0]) for row in matching],
                Style(colour, {"ddr": 1, "hbw": 0}.get(memory, plain), colour),
                [(float(row.n_ranks), row.seconds[1], row.seconds[2]) for row in matching],
            )
        )
    return series
