"""Section on resource usage during training (:func:`sections`): figures as Lerat et al. 2022, Figures 2-6."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from psframe.report.charts import Series, Style, lines
from psframe.report.html import Section, figure, heading, legend, note
from psframe.report.read import Json, Run
from psframe.report.scale import Axis
from psframe.report.values import number, numbers

MAX_RUNS = 8
MAX_POINTS = 300  # of a line
FEW_RANKS = 6  # up to which they differ by colour

#: title, keys with the name of each, divisor of the values
PANELS = (
    ("CPU (%, 100 is one core)", (("cpu_percent", ""),), 1.0),
    ("resident memory (MB)", (("rss_bytes", ""),), 1e6),
    ("threads", (("threads", ""),), 1.0),
    ("network of the node (MB/s)", (("sent_bytes_per_s", "sent"), ("received_bytes_per_s", "received")), 1e6),
)
Points = list[tuple[float, float]]


def sections(runs: Sequence[Run]) -> list[Section]:
    sampled = [run for run in runs if run.usage]
    shown, body = sampled[:MAX_RUNS], ""
    for place, run in enumerate(shown):
        body += heading(run.label) + drawn(run, f"figure-usage-{place}", small=len(shown) > 1)
    if not body:
        return []
    more = f"The first {MAX_RUNS} of {len(sampled)} runs are drawn." if len(sampled) > MAX_RUNS else ""
    return [Section("usage", "CPU, memory, threads and network", body + note(more))]


def drawn(run: Run, name: str, small: bool = False) -> str:
    """Return the four panels of a run; "" if its samples are damaged."""
    drawings, all_series = [], []
    for title, keys, unit in PANELS:
        largest = max((n for key, _ in keys for n in numbers(run.usage, key)), default=0)
        if keys[0][0] == "sent_bytes_per_s" and 0 < largest < 1e5:
            title, unit = "network of the node (kB/s)", 1e3
        series = [
            curve for place, (key, word) in enumerate(keys) for curve in _series(run.usage, key, word, unit, place)
        ]
        if series:
            y = Axis(title, whole=title == "threads")
            drawings.append(lines(title, series, Axis("seconds since the run began"), y, small))
            all_series += series if len(keys) == 1 else []
    if not drawings:
        return ""
    ranks = {n for sample in run.usage if (n := number(sample.get("rank"), 0)) is not None}
    how = "a line a rank" if len(ranks) <= FEW_RANKS else "a thin line a rank, the median over the ranks bold"
    caption = (
        f"Samples of {len(ranks)} rank(s): {how}. Network is that of all interfaces of the rank's node: sent solid, "
        "received dashed."
    )
    return figure(name, caption, drawings, legend(all_series), small)


def _series(usage: Sequence[Json], key: str, word: str, unit: float, place: int) -> list[Series]:
    by_rank: dict[int, Points] = defaultdict(list)
    for sample in usage:
        rank, at, value = (number(sample.get(name), 0) for name in ("rank", "t_s", key))
        if rank is not None and at is not None and value is not None:
            by_rank[int(rank)].append((at, value / unit))
    if not by_rank:
        return []
    if word:  # a node's values are the same for all of its ranks
        points = [point for rank_points in by_rank.values() for point in rank_points]
        return [Series(word, middle(points), Style(place, place, _mark(points)))]
    if len(by_rank) <= FEW_RANKS:
        numbered = enumerate(sorted(by_rank))
        return [Series(f"rank {r}", thinned(by_rank[r]), Style(n, 0, _mark(by_rank[r]))) for n, r in numbered]
    thin = [Series("a rank", thinned(by_rank[r]), Style(-1, 0, None), thin=True) for r in sorted(by_rank)]
    all_points = [point for rank_points in by_rank.values() for point in rank_points]
    return [*thin, Series("median over the ranks", middle(all_points), Style(0, 0, None))]


def _mark(points: Points) -> int | None:
    """Return a mark for a single point; None for a line."""
    return 0 if len(points) == 1 else None


def thinned(points: Points) -> Points:
    """Return at most ``MAX_POINTS`` points: means of neighbours."""
    ordered = sorted(points)
    group_size = -(-len(ordered) // MAX_POINTS)
    cut = [ordered[i : i + group_size] for i in range(0, len(ordered), group_size)]
    return [(sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in cut]


def middle(points: Points) -> Points:
    """Return the median over ranks by time, in bins of one second or more."""
    end = max(at for at, _ in points)
    wide = max(1.0, end / MAX_POINTS)
    bins: dict[int, list[float]] = defaultdict(list)
    for at, value in points:
        bins[int(at / wide)].append(value)
    return [((bin + 0.5) * wide, median(values)) for bin, values in sorted(bins.items())]
