"""Section on ``psframe.predict`` (:func:`sections`): modelled epochs over ranks; predicted against measured seconds."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from psframe.report.charts import Series, Style, lines, styled
from psframe.report.html import Section, figure, legend, table
from psframe.report.read import Json
from psframe.report.scale import ranks_axis, time_axis
from psframe.report.values import list_of, number, positive, said, table_of, text

MOST = 12  # ways that are drawn
PARTS = ("compute", "wait", "exchange", "links")

Row = Mapping[str, Any]


def sections(benches: Sequence[tuple[Path, Json]]) -> list[Section]:
    body = "".join(_curves(bench, place) for place, (_, bench) in enumerate(benches))
    body += _against(benches)
    return [Section("predict", "Predicted (modelled, not measured)", body)] if body else []


def _curves(bench: Json, place: int) -> str:
    """Return epochs over ranks, a line per way."""
    rows = [row for row in list_of(bench.get("rows")) if number(row.get("n_ranks"), 1) and positive(row.get("epoch_s"))]
    if not rows:
        return ""
    rows.sort(key=lambda row: float(row["n_ranks"]))
    names = list(dict.fromkeys(text(row.get("label"), 60) for row in rows))[:MOST]
    series = [
        Series(f"{name} (modelled)", [_point(row) for row in rows if text(row.get("label"), 60) == name], styled(n))
        for n, name in enumerate(names)
    ]
    what = f"{text(bench.get('model'), 30)} on {text(bench.get('machine'), 90)}"
    after = f"-{place + 1}" if place else ""
    caption = f"Seconds of an epoch against ranks, {what}: modelled, not measured. The lowest line wins at its ranks."
    drawn = lines(
        "Seconds of an epoch as modelled", series, ranks_axis([x for s in series for x, _ in s.points]),
        time_axis("seconds an epoch"),
    )  # fmt: skip
    head = ["<way", "ranks", "nodes", "s/epoch", *PARTS, "<measured of it"]
    body = [_line(row) for row in rows if text(row.get("label"), 60) in names]
    table_caption = f"The same in numbers ({what}): all modelled, but for what the last column names."
    return figure(f"figure-predict{after}", caption, [drawn], legend(series)) + table(
        f"table-predict{after}", table_caption, head, body
    )


def _point(row: Row) -> tuple[float, float]:
    return float(row["n_ranks"]), float(row["epoch_s"])


def _line(row: Row) -> list[str]:
    split = table_of(row.get("split"))
    epoch_s = float(row["epoch_s"])
    shares = [number(split.get(part), 0) for part in PARTS]
    parts = ["–" if share is None else f"{100 * share / epoch_s:.0f} %" for share in shares]
    names = row.get("measured")
    measured = ", ".join(text(name, 20) for name in names[: len(PARTS)]) if isinstance(names, list) else ""
    return [
        text(row.get("label"), 60),
        f"{row['n_ranks']:.0f}",
        f"{number(row.get('nodes'), 1) or 1:.0f}",
        said(epoch_s, 4),
        *parts,
        measured or "nothing",
    ]


def _against(benches: Sequence[tuple[Path, Json]]) -> str:
    """Return predicted against measured seconds, each pair once, with the line of equality."""
    pairs: dict[tuple[str, float, float, float], str] = {}
    for _, bench in benches:
        for pair in list_of(bench.get("pairs")):
            measured, predicted, n = (positive(pair.get(key)) for key in ("measured", "predicted", "n_ranks"))
            if measured and predicted and n:
                pairs.setdefault((text(pair.get("what"), 90), n, measured, predicted), text(pair.get("of"), 40))
    if not pairs:
        return ""
    kinds = list(dict.fromkeys(pairs.values()))[:MOST]
    points = [
        Series(kind, [(measured, predicted)], Style(kinds.index(kind) % 8, 0, kinds.index(kind) % 4))
        for (_, _, measured, predicted), kind in pairs.items()
        if kind in kinds
    ]
    seconds = [v for _, _, measured, predicted in pairs for v in (measured, predicted)]
    equal = Series(
        "ideal", [(min(seconds), min(seconds)), (max(seconds), max(seconds))], Style(-1, 1, None), ideal=True
    )
    drawn = lines("Predicted against measured", [*points, equal], time_axis("measured"), time_axis("predicted"))
    rows = [
        [what, f"{n:.0f}", said(measured, 4), said(predicted, 4), f"{100 * (predicted / measured - 1):+.0f} %", kind]
        for (what, n, measured, predicted), kind in pairs.items()
    ]
    caption = "Predicted against measured seconds: each mark is a prediction made first. On the line they are equal."
    return figure("figure-predict-error", caption, [drawn], legend(points)) + table(
        "table-predict-error",
        "The same in numbers.",
        ["<what", "ranks", "measured s", "predicted s", "error", "<of"],
        rows,
    )
