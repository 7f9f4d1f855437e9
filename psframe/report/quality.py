"""Section on the metrics of the test set (:func:`sections`): curves, classes, and the confusion matrix as a picture."""

from collections.abc import Mapping, Sequence
from typing import Any

from psframe.report.charts import Series, heat, lines
from psframe.report.html import Section, figure, legend, note, table
from psframe.report.read import Run
from psframe.report.scale import Axis
from psframe.report.training import MAX_RUNS, line_style, numbered
from psframe.report.values import column, number, table_of, text

MAX_CURVES = 12
MAX_MATRICES = 8
MAX_CLASSES = 100  # of a picture, and of a table
MAX_ROWS = 400  # of a table

Matrix = list[list[float]]


def sections(runs: Sequence[Run]) -> list[Section]:
    body = _curves(runs) + _matrices(runs) + _by_class(runs)
    return [Section("metrics", "Metrics of the test set", body)] if body else []


def _curves(runs: Sequence[Run]) -> str:
    """Return a chart for each metric that is a number."""
    groups = numbered(runs)
    shown = [run for run in runs if groups[run.group] < MAX_RUNS]
    by_label: dict[str, list[Series]] = {}
    for run in shown:
        for label, points in _points(run).items():
            by_label.setdefault(label, []).append(Series(run.group, points, line_style(groups[run.group], len(points))))
    if not by_label:
        return ""
    drawn = list(by_label.items())[:MAX_CURVES]
    drawings = [
        lines(f"{label} against epochs", series, Axis("epochs", whole=True), Axis(label, zero=False))
        for label, series in drawn
    ]
    more = f"The first {MAX_CURVES} of {len(by_label)} metrics are drawn." if len(by_label) > MAX_CURVES else ""
    caption = "Metrics of the test set after each epoch, by their names in the config."
    return figure("figure-metrics", caption, drawings, legend([s for _, of in drawn for s in of])) + note(more)


def _points(run: Run) -> dict[str, list[tuple[float, float]]]:
    """Return epochs with the values that are numbers, by label."""
    points: dict[str, list[tuple[float, float]]] = {}
    for record in run.records:
        at = number(record.get("epoch"), 0)
        for label, value in _metrics(record).items():
            if at is not None and (y := number(value)) is not None:
                points.setdefault(label, []).append((at, y))
    return points


def _metrics(record: Mapping[str, Any]) -> dict[str, Any]:
    return {text(label, 40): value for label, value in list(table_of(record.get("metrics")).items())[:64]}


def _matrices(runs: Sequence[Run]) -> str:
    """Return a picture of the last confusion matrix of each run."""
    found = [(run, matrix) for run in runs if (matrix := _matrix(_metrics(run.last).get("confusion")))]
    if not found:
        return ""
    drawings = []
    for run, matrix in found[:MAX_MATRICES]:
        names = [str(of_class) for of_class in range(len(matrix))]
        drawings.append(heat("Confusion matrix", names, names, matrix, run.label, ("class", "samples")))
    more = f"The first {MAX_MATRICES} of {len(found)} runs are drawn." if len(found) > MAX_MATRICES else ""
    caption = (
        "Test samples by their class (rows) and the predicted one (columns) after the last epoch; a cell is as dark as "
        "its share of its class."
    )
    return figure("figure-confusion", caption, drawings) + note(more)


def _matrix(value: Any) -> Matrix:
    """Return a square matrix of counts; [] for anything else, or one that is too large for a picture."""
    if not isinstance(value, list) or not 0 < len(value) <= MAX_CLASSES:
        return []
    rows = [[number(n, 0) for n in row] if isinstance(row, list) else [] for row in value]
    matrix = [[n for n in row if n is not None] for row in rows]
    return matrix if all(len(row) == len(value) for row in matrix) else []


def _by_class(runs: Sequence[Run]) -> str:
    """Return a table of the metrics that have a number for each class."""
    lists = [(run, {label: found for label, of in _metrics(run.last).items() if (found := _list(of))}) for run in runs]
    labels = list(dict.fromkeys(label for _, by_label in lists for label in by_label))[:MAX_CURVES]
    rows: list[list[str]] = []
    for run, by_label in lists:
        n_classes = max(map(len, by_label.values()), default=0)
        cells = [column([*by_label.get(label, []), *[None] * n_classes][:n_classes]) for label in labels]
        rows += [[run.label, str(of_class), *(of[of_class] for of in cells)] for of_class in range(n_classes)]
    if not rows:
        return ""
    more = f"The first {MAX_ROWS} of {len(rows)} rows are shown." if len(rows) > MAX_ROWS else ""
    caption = "Metrics of each class of the test set, after the last epoch."
    return table("table-classes", caption, ["<run", "class", *labels], rows[:MAX_ROWS], more)


def _list(value: Any) -> list[float | None]:
    """Return a list of numbers, None for others; [] for anything else, or a list that is too long for a table."""
    if not isinstance(value, list) or len(value) > MAX_CLASSES or any(isinstance(item, list) for item in value):
        return []
    return [number(item) for item in value]
