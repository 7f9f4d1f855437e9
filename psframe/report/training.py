"""Sections on training (:func:`sections`): phases of an epoch, loss and accuracy, moved bytes, staleness."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from psframe.report.charts import Bar, Group, Series, Style, bars, histogram, lines, styled
from psframe.report.html import Section, figure, legend, note, pair, patches
from psframe.report.read import Run
from psframe.report.runs import epoch_s, middle
from psframe.report.scale import Axis
from psframe.report.values import number, said, size, table_of

PHASES = ("data", "compute", "exchange", "update", "wait")
MOVED = (("bytes_read", "c5", "read"), ("bytes_written", "c3", "written"), ("bytes_sent", "c6", "sent"))
MAX_RUNS = 24  # in a figure of lines
MAX_HISTOGRAMS = 12
MAX_BINS = 12
MAX_MARKS = 40  # on a line


def sections(runs: Sequence[Run]) -> list[Section]:
    recorded = [run for run in runs if run.records]
    candidates = [
        Section("time", "Where the time goes", pair(_phases(recorded), _bytes(recorded))),
        Section("learning", "Loss and accuracy", _curves(recorded)),
        Section("staleness", "Staleness", _staleness(recorded)),
    ]
    return [section for section in candidates if section.body and section.body != pair("", "")]


def _phases(runs: Sequence[Run]) -> str:
    groups = []
    for run in runs:
        total = epoch_s(run)
        parts = [(middle(run, f"{name}_s") or 0.0, name, name) for name in PHASES]
        rest = total[0] - sum(length for length, _, _ in parts) if total else 0.0
        parts.append((max(0.0, rest), "other", "other"))
        if total or rest < 0 or any(length for length, _, _ in parts):
            groups.append(Group(run.label, [Bar(parts, f"{said(total[0])} s" if total else "")]))
    if not groups:
        return ""
    return figure(
        "figure-phases",
        "Seconds of an epoch, medians over the epochs. At the bar's end stand those of the slowest rank; the phases "
        "are the mean worker's, and other is what is left between the two.",
        [bars("Seconds of an epoch by phase", groups, Axis("seconds an epoch"))],
        patches([(name, name) for name in (*PHASES, "other")]),
    )


def _bytes(runs: Sequence[Run]) -> str:
    moved = [(run, [(middle(run, key) or 0.0, kind, name) for key, kind, name in MOVED]) for run in runs]
    largest = max((sum(length for length, _, _ in parts) for _, parts in moved), default=0.0)
    if not largest:
        return ""
    unit, name = next(((u, n) for u, n in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if largest >= u), (1.0, "bytes"))
    groups = []
    for run, parts in moved:
        shown = [(length / unit, f"fill {kind}", part_name) for length, kind, part_name in parts]
        total = sum(length for length, _, _ in parts)
        groups.append(Group(run.label, [Bar(shown, size(total) if total else "none")]))
    return figure(
        "figure-bytes",
        "Bytes that all ranks together read and write in exchanges and updates, and send, in an epoch; medians over "
        "the epochs.",
        [bars("Bytes moved in an epoch", groups, Axis(f"{name} an epoch"))],
        patches([(f"fill {kind}", part_name) for _, kind, part_name in MOVED]),
    )


def _curves(runs: Sequence[Run]) -> str:
    groups = numbered(runs)
    shown = [run for run in runs if groups[run.group] < MAX_RUNS]
    drawings, all_series = [], []
    few = len(shown) <= 2
    for key, title, scale, share in (
        ("loss", "training loss", 1.0, False),
        ("accuracy", "test accuracy (%)", 100.0, True),
    ):
        for across, x_title in (("epoch", "epochs"), ("epoch_s", "training seconds")):
            series = []
            for run in shown:
                place = groups[run.group]
                points = _points(run, across, key, scale)
                if points:
                    series.append(Series(run.group, points, line_style(place, len(points))))
                if few and key == "loss" and (points := _points(run, across, "test_loss", 1.0)):
                    dashed = Style(styled(place).colour, dash=1, shape=None)
                    series.append(Series(f"{run.group}, test loss", points, dashed))
            all_series += series
            if series:
                x = Axis(x_title, whole=across == "epoch")
                named = f"{title}{', test loss dashed' if few and not share else ''}"
                drawings.append(lines(f"{title} against {x_title}", series, x, Axis(named, zero=not share)))
    if not drawings:
        return ""
    more = f"The first {len(shown)} of {len(runs)} runs are shown." if len(runs) > len(shown) else ""
    models = {run.get("model") for run in shown}
    if len(models) > 1:
        more += " The runs are of different models: their curves cannot be compared."
    caption = (
        "Loss over the training set and accuracy on the test set, against epochs and against the seconds they took."
    )
    return figure("figure-curves", caption, drawings, legend(all_series)) + note(more.strip())


def numbered(runs: Sequence[Run]) -> dict[str, int]:
    """Return the number of each group of repeated runs, which share a colour."""
    return {group: place for place, group in enumerate(dict.fromkeys(run.group for run in runs))}


def line_style(place: int, n_points: int) -> Style:
    """Return the look of a group's line; with marks if its points are few."""
    return styled(place) if n_points <= MAX_MARKS else replace(styled(place), shape=None)


def _points(run: Run, across: str, key: str, scale: float) -> list[tuple[float, float]]:
    """Return a key's values against epochs, or against the seconds until their ends."""
    at = [number(record.get(across), 0) for record in run.records]
    if across == "epoch_s":
        known = at.index(None) if None in at else len(at)  # from here on the seconds are unknown
        at = list(accumulate(s or 0.0 for s in at[:known]))
    values = [number(record.get(key), 0) for record in run.records]
    return [(x, scale * y) for x, y in zip(at, values, strict=False) if x is not None and y is not None]


def _staleness(runs: Sequence[Run]) -> str:
    by_run = [(run.label, counts) for run in runs if any(counts := _counted(run))]  # all 0: a synchronous mode
    if not by_run:
        return ""
    drawings = [
        histogram("Staleness", _bins(counts), "staleness (clocks)", Axis("gradients"), label)
        for label, counts in by_run[:MAX_HISTOGRAMS]
    ]
    caption = (
        "How many gradients were so many clocks old when they were applied, over all epochs; what a clock is, the mode "
        "says. Runs whose gradients were never old are left out."
    )
    more = f"The first {MAX_HISTOGRAMS} of {len(by_run)} runs are drawn." if len(by_run) > MAX_HISTOGRAMS else ""
    return figure("figure-staleness", caption, drawings, small=True) + note(more)


def _counted(run: Run) -> dict[int, float]:
    """Return the number of gradients by staleness in clocks."""
    counts: dict[int, float] = {}
    for record in run.records:
        for clocks, count in table_of(record.get("staleness")).items():
            if clocks.isdecimal() and len(clocks) < 6 and (n := number(count, 0)):
                counts[int(clocks)] = counts.get(int(clocks), 0.0) + n
    return counts


def _bins(counts: dict[int, float]) -> list[tuple[str, float]]:
    wide = max(1, -(-(max(counts) + 1) // MAX_BINS))
    bins: dict[int, float] = dict.fromkeys(range(max(counts) // wide + 1), 0.0)
    for clocks, count in counts.items():
        bins[clocks // wide] += count
    return [(f"{b * wide}" if wide == 1 else f"{b * wide}–{(b + 1) * wide - 1}", n) for b, n in bins.items()]
