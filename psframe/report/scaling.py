"""Section on scaling (:func:`sections`): runs that differ only in their number of ranks."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import floor
from statistics import median

from psframe.record.summary import reached_s
from psframe.report.charts import Series, lines, styled
from psframe.report.html import Section, figure, legend, table
from psframe.report.read import Run
from psframe.report.runs import key_of, samples_per_s
from psframe.report.scale import Axis, ranks_axis
from psframe.report.values import number, said, text

Points = list[tuple[float, float]]
Groups = Mapping[str, Mapping[int, Sequence[Run]]]  # runs by group, and by their number of ranks


def sections(runs: Sequence[Run]) -> list[Section]:
    groups = _groups(runs)
    if not groups:
        return []
    rates, shares, spreads, rows = [], [], [], []
    for place, (name, of_ranks) in enumerate(groups.items()):
        by_ranks = {n: [rate for run in found if (rate := samples_per_s(run))] for n, found in of_ranks.items()}
        points = [(float(n), median(values)) for n, values in by_ranks.items()]
        style = styled(place)
        spreads = [(float(n), min(values), max(values)) for n, values in by_ranks.items() if len(values) > 1]
        rates += [Series(name, points, style, spreads), ideal(points)]
        fewest, rate = points[0]
        efficiency = [(n, 100 * (got / n) / (rate / fewest)) for n, got in points]
        shares.append(Series(name, efficiency, style))
        for (n, got), (_, share) in zip(points, efficiency, strict=True):
            rows.append([name, f"{n:.0f}", said(got, 4), f"{len(by_ranks[int(n)])}", f"{share:.1f} %"])
    x = ranks_axis([n for series in shares for n, _ in series.points])
    caption = (
        "Runs that differ only in their number of ranks: samples per second, medians over runs, and "
        "efficiency, that is samples per second and rank, against the fewest ranks measured; and the training seconds "
        "up to two points below the best accuracy, of those that get there. A dedicated server is a rank that computes "
        "nothing."
    )
    drawings = [
        lines("Samples per second against ranks", rates, x, Axis("samples/s")),
        lines("Efficiency against ranks", [*shares, whole(shares)], x, Axis("efficiency (%)")),
        *_to_accuracy(groups, x),
    ]
    body = figure("figure-scaling", caption, drawings, legend(shares))
    body += table("table-scaling", "The same in numbers.", ["<runs", "ranks", "samples/s", "runs", "efficiency"], rows)
    return [Section("scaling", "More ranks", body)]


def ideal(points: Points) -> Series:
    """Return the line of perfect scaling from the first point."""
    fewest, rate = points[0]
    return Series("ideal", [(n, rate * n / fewest) for n, _ in points], ideal=True)


def whole(shares: Sequence[Series]) -> Series:
    """Return the line of 100 % efficiency."""
    return Series("ideal", [(n, 100.0) for n in sorted({n for curve in shares for n, _ in curve.points})], ideal=True)


def _to_accuracy(groups: Groups, x: Axis) -> list[str]:
    """Return a chart of the seconds until two points below the best accuracy; none without records.

    What does not get there, as a run that diverges, has no point.
    """
    every = [run for runs in groups.values() for of in runs.values() for run in of]
    best = max(number(record.get("accuracy"), 0) or 0.0 for run in every for record in run.records)
    target = floor(100 * best - 2 + 1e-9) / 100
    series = []
    for place, (name, runs) in enumerate(groups.items()):
        seconds = {n: [s for run in of if (s := _reached_s(run, target))] for n, of in runs.items()}
        if points := [(float(n), median(of)) for n, of in seconds.items() if of]:
            series.append(Series(name, points, styled(place)))
    heading = f"Seconds to an accuracy of {target:.0%} against ranks"
    return [lines(heading, series, x, Axis(f"seconds to {target:.0%} accuracy"))] if target > 0 else []


def _reached_s(run: Run, target: float) -> float | None:
    """Return what :func:`psframe.record.summary.reached_s` does, of records that may be damaged."""
    keys = ("epoch_s", "accuracy")
    return reached_s([{key: number(record.get(key), 0) or 0.0 for key in keys} for record in run.records], target)


def _groups(runs: Sequence[Run]) -> Groups:
    """Return runs by number of ranks, of each group with several numbers of ranks."""
    by_key: dict[object, list[Run]] = defaultdict(list)
    for run in runs:
        if run.config and number(run.last.get("n_ranks"), 1) and samples_per_s(run):
            by_key[key_of(run)].append(run)
    groups: dict[str, dict[int, list[Run]]] = {}
    for group in by_key.values():
        by_ranks: dict[int, list[Run]] = defaultdict(list)
        for run in group:
            by_ranks[int(run.last["n_ranks"])].append(run)
        if len(by_ranks) > 1:
            name = text(group[0].what, 60)
            name = name if name not in groups else f"{name} ({len(groups) + 1})"
            groups[name] = dict(sorted(by_ranks.items()))
    return groups
