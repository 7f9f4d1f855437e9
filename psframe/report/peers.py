"""Section on ``bench peers`` (:func:`sections`): psframe beside other frameworks, with the same data and model."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from psframe.report.charts import Bar, Group, bars
from psframe.report.html import Section, figure, patches, table
from psframe.report.read import Json
from psframe.report.scale import Axis
from psframe.report.values import NONE, between, column, list_of, number, said, spread, table_of, text

MOST = 8  # frameworks, each with a colour

Row = Mapping[str, Any]


def sections(benches: Sequence[tuple[Path, Json]]) -> list[Section]:
    body = "".join(_bench(bench, place) for place, (_, bench) in enumerate(benches))
    return [Section("peers", "Beside other frameworks", body)] if body else []


def _bench(bench: Json, place: int) -> str:
    rows = [row for row in list_of(bench.get("rows")) if number(row.get("n_ranks"), 1)]
    rows.sort(key=lambda row: row["n_ranks"])
    all_names = dict.fromkeys(name for row in rows for name in table_of(row.get("epoch_s")))
    names = sorted(all_names, key=lambda name: name != "psframe")[:MOST]
    groups = [group for row in rows if (group := _group(row, names)).bars]
    if not groups:
        return ""
    what = f"{text(bench.get('model'), 30)} on {text(bench.get('dataset'), 30)}"
    after = f"-{place + 1}" if place else ""
    caption = f"Seconds of an epoch, {what}: medians, with quartiles."
    absent = [f"{text(name, 20)} is not there: {text(why, 200)}" for name, why in table_of(bench.get("absent")).items()]
    kinds = patches([(f"fill c{n}", text(name, 20)) for n, name in enumerate(names)])
    drawn = bars("Seconds of an epoch by framework", groups, Axis("seconds an epoch"))
    table_caption = (
        f"The same in numbers ({what}). A ratio is taken within one round of measurements, so it spreads less than "
        "the seconds."
    )
    head = ["ranks", "batch", "<framework", "s/epoch", "quartiles", "ratio to psframe", "its quartiles", "accuracy"]
    lines = [line for row in rows for line in _lines(row, names)]
    return figure(f"figure-peers{after}", caption, [drawn], kinds) + table(
        f"table-peers{after}", table_caption, head, lines, ". ".join(absent[:MOST])
    )


def _named(row: Row) -> tuple[str, str]:
    return f"{row['n_ranks']:.0f}", text(row.get("batch_size"), 9) or NONE


def _group(row: Row, names: Sequence[str]) -> Group:
    drawn = []
    for place, name in enumerate(names):
        seconds = spread(table_of(row.get("epoch_s")).get(name))
        if seconds:
            part = (seconds[0], f"fill c{place}", text(name, 20))
            drawn.append(Bar([part], f"{said(seconds[0])} s", seconds[1:]))
    ranks, batch = _named(row)
    return Group(f"{ranks} ranks, batch {batch}", drawn)


def _lines(row: Row, names: Sequence[str]) -> list[list[str]]:
    spreads = [spread(table_of(row.get("epoch_s")).get(name)) for name in names]
    lines = []
    for name, seconds, shown in zip(names, spreads, column([s[0] if s else None for s in spreads]), strict=True):
        ratio = spread(table_of(row.get("ratio")).get(name))
        accuracy = number(table_of(row.get("accuracy")).get(name), 0)
        times = [f"{ratio[0]:.2f}" if ratio else NONE, between(ratio)]
        percent = NONE if accuracy is None else f"{100 * accuracy:.2f} %"
        lines.append([*_named(row), text(name, 20), shown, between(seconds), *times, percent])
    return lines
