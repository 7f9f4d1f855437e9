"""Section on scaling (:func:`sections`): runs that differ only in their number of ranks."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median

from psframe.report.charts import Series, lines, styled
from psframe.report.html import Section, figure, legend, table
from psframe.report.read import Run
from psframe.report.runs import key_of, samples_per_s
from psframe.report.scale import Axis, ranks_axis
from psframe.report.values import number, said, text

Points = list[tuple[float, float]]


def sections(runs: Sequence[Run]) -> list[Section]:
    groups = _groups(runs)
    if not groups:
        return []
    rates, shares, spreads, rows = [], [], [], []
    for place, (name, by_ranks) in enumerate(groups.items()):
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
        "efficiency, that is samples per second and rank, against the fewest ranks measured. A dedicated server is a "
        "rank that computes nothing."
    )
    drawings = [
        lines("Samples per second against ranks", rates, x, Axis("samples/s")),
        lines("Efficiency against ranks", [*shares, whole(shares)], x, Axis("efficiency (%)")),
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


def _groups(runs: Sequence[Run]) -> Mapping[str, dict[int, list[float]]]:
    """Return samples per second by number of ranks, of each group with several numbers of ranks."""
    by_key: dict[object, list[Run]] = defaultdict(list)
    for run in runs:
        if run.config and number(run.last.get("n_ranks"), 1):
            by_key[key_of(run)].append(run)
    groups: dict[str, dict[int, list[float]]] = {}
    for group in by_key.values():
        rates: dict[int, list[float]] = defaultdict(list)
        for run in group:
            rate = samples_per_s(run)
            if rate:
                rates[int(run.last["n_ranks"])].append(rate)
        if len(rates) > 1:
            name = text(group[0].what, 60)
            name = name if name not in groups else f"{name} ({len(groups) + 1})"
            groups[name] = dict(sorted(rates.items()))
    return groups
