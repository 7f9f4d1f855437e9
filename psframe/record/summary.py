"""Summary of a run in one row (:func:`row`), from its metrics.jsonl.

Seconds per epoch are the median over a run's complete epochs, then over its repeats; samples/s are the samples of such
an epoch divided by these seconds, so that both figures always agree.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import floor, log10
from statistics import median
from typing import Any

SECONDS = "seconds"  #: a format: three significant digits, and at least two decimals

#: heading, key of a row, format
COLUMNS = (
    ("ranks", "n_ranks", "d"),
    ("workers", "n_workers", "d"),
    ("global batch", "global_batch", "d"),
    ("s an epoch", "epoch_s", SECONDS),
    ("samples/s", "samples_per_s", ",.0f"),
    ("wait s", "wait_s", ".2f"),
    ("accuracy", "accuracy", ".2%"),
    ("s to target", "target_s", ".1f"),
    ("stale p50", "staleness_p50", "d"),
    ("p99", "staleness_p99", "d"),
    ("dropped", "dropped", "d"),
    ("MB an epoch", "mb", ",.0f"),
    ("MB sent", "mb_sent", ",.0f"),
)
#: columns of repeated runs, after their seconds per epoch
REPEATED = (("fastest", "low", SECONDS), ("slowest", "high", SECONDS), ("runs", "n_runs", "d"))
FORMS = {key: form for _, key, form in (*COLUMNS, *REPEATED)}
SHARED = ("n_ranks", "n_workers", "global_batch")  # equal in all repeats of a run


def whole(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the records of complete epochs, not those that a continued run began midway; all if none is complete."""
    return [record for record in records if not record.get("begun_at")] or list(records)


def row(records: Sequence[dict[str, Any]], target: float) -> dict[str, Any]:
    """Return a run's row, from its epochs' records.

    Seconds, samples and megabytes (10^6 bytes) are per epoch, medians over complete epochs; ``samples_per_s`` is the
    ratio of these samples and seconds. ``accuracy``, staleness, ``dropped``, ranks, workers and global batch are the
    last epoch's. ``target_s`` is the training time in seconds up to the end of the first epoch with an accuracy of at
    least ``target``, None without one.
    """
    last, counted = records[-1], whole(records)
    middles = {
        key: median(record[key] for record in counted)
        for key in ("epoch_s", "samples_used", "wait_s", "bytes_moved", "bytes_sent")
    }
    return {
        **{key: last[key] for key in SHARED},
        "epoch_s": middles["epoch_s"],
        "samples_per_s": middles["samples_used"] / middles["epoch_s"],
        "samples_used": middles["samples_used"],
        "wait_s": middles["wait_s"],
        **{key: last[key] for key in ("accuracy", "staleness_p50", "staleness_p99", "dropped")},
        "target_s": reached_s(records, target),
        "mb": middles["bytes_moved"] / 1e6,
        "mb_sent": middles["bytes_sent"] / 1e6,
    }


def reached_s(records: Sequence[dict[str, Any]], target: float) -> float | None:
    """Return the training seconds up to the first epoch with at least this accuracy; None without one."""
    spent_s = 0.0
    for record in records:
        spent_s += record["epoch_s"]
        if record["accuracy"] >= target:
            return spent_s
    return None


def middle(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians over repeats of a run, and the ``low`` and ``high`` of their seconds per epoch."""
    stats: dict[str, Any] = {}
    for key in rows[0]:
        values = [repeat[key] for repeat in rows if repeat[key] is not None]
        missing = len(values) < len(rows)
        stats[key] = None if missing or not values else median(values)
    stats |= {key: rows[0][key] for key in SHARED}
    stats["samples_per_s"] = stats["samples_used"] / stats["epoch_s"]  # agrees with epoch_s, unlike a median of rates
    seconds = [repeat["epoch_s"] for repeat in rows]
    return {**stats, "low": min(seconds), "high": max(seconds), "n_runs": len(rows)}


def told(found: Mapping[str, Any]) -> str:
    """Return a row in a few words, with the figures as in the table."""
    seconds, rate, accuracy = (cell(found, key) for key in ("epoch_s", "samples_per_s", "accuracy"))
    return f"{seconds} s an epoch, {rate} samples/s, accuracy {accuracy}"


def cells(
    rows: Sequence[tuple[str, Mapping[str, Any]]], failed: Sequence[tuple[str, int]], repeated: bool
) -> list[list[str]]:
    """Return a table's cells: the heading, a line per labeled row, and a line per failed (label, number of ranks).

    Parameters
    ----------
    repeated : bool
        True if rows stand for several runs and have a range to show.
    """
    columns = [*COLUMNS[:4], *(REPEATED if repeated else ()), *COLUMNS[4:]]
    lines = [["run", *(heading for heading, _, _ in columns)]]
    lines += [[label, *(cell(figures, key) for _, key, _ in columns)] for label, figures in rows]
    for label, n_ranks in failed:
        texts = {"n_ranks": str(n_ranks), "epoch_s": "failed"}
        lines.append([label, *(texts.get(key, "") for _, key, _ in columns)])
    return lines


def cell(found: Mapping[str, Any], key: str) -> str:
    """Return a row's value as tables show it; ``-`` for None."""
    value, form = found[key], FORMS[key]
    if value is None:
        return "-"
    if form == SECONDS:
        return f"{value:,.{max(2, 2 - floor(log10(value))) if value > 0 else 2}f}"
    return format(round(value) if form == "d" else value, form)


def notes(rows: Sequence[Mapping[str, Any]], target: float) -> list[str]:
    """Return the lines that explain a table's figures."""
    lines = [
        f"target accuracy {target:.2%}; accuracy, staleness and dropped are the last epoch's; global batch is the "
        "samples of a step, over all workers",
        "seconds and bytes are an epoch's, medians over a run's epochs and then over its repeats; samples/s are an "
        "epoch's samples over these seconds",
    ]
    return [*lines, *filter(None, [unequal(rows)])]


def unequal(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return a sentence on rows of equal ranks that differ in workers or global batch; "" if none do."""
    by_ranks: dict[int, list[Mapping[str, Any]]] = {}
    for figures in rows:
        by_ranks.setdefault(figures["n_ranks"], []).append(figures)
    clauses, idle = [], False
    for n_ranks, group in sorted(by_ranks.items()):
        distinct = {key: sorted({figures[key] for figures in group}) for key in ("n_workers", "global_batch")}
        words = [
            f"{word} ({', '.join(f'{value:.0f}' for value in distinct[key])})"
            for word, key in (("workers", "n_workers"), ("global batch", "global_batch"))
            if len(distinct[key]) > 1
        ]
        clauses += [f"at {n_ranks:.0f} ranks runs differ in {' and '.join(words)}"] if words else []
        idle |= len(distinct["n_workers"]) > 1 and distinct["n_workers"][0] < n_ranks
    why = "; a rank that only serves, or holds a part of a network, is no worker of its own" if idle else ""
    return "; ".join(clauses) + why


def paying(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """Return a line for each label with rows of several numbers of ranks: up to how many more of them pay."""
    by_label: dict[str, dict[int, Mapping[str, Any]]] = {}
    for label, figures in rows:
        by_label.setdefault(label, {})[int(figures["n_ranks"])] = figures
    return [_paying(label, sorted(of.items())) for label, of in by_label.items() if len(of) > 1]


def _paying(label: str, rows: Sequence[tuple[int, Mapping[str, Any]]]) -> str:
    reached = [(figures["target_s"], n_ranks) for n_ranks, figures in rows if figures["target_s"] is not None]
    if not reached:
        return f"{label} does not reach the target on {', '.join(f'{n:,}' for n, _ in rows)} ranks"
    _, best = min(reached)
    told = [f"{cell({'epoch_s': s}, 'epoch_s')} s on {n:,}" for s, n in reached]
    missed = [f"{n:,}" for n, figures in rows if figures["target_s"] is None]
    also = f", and does not on {', '.join(missed)}" if missed else ""
    until = "more ranks pay up to" if best < rows[-1][0] else "more ranks still pay at"
    return f"{label} reaches the target after {', '.join(told)} ranks{also}: {until} {best:,}"
