"""What a run came to, in one row: from its metrics.jsonl."""

from collections.abc import Sequence
from statistics import median
from typing import Any

#: heading, key of a row, format
COLUMNS = (
    ("ranks", "n_ranks", "d"),
    ("s an epoch", "epoch_s", ".2f"),
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


def row(records: Sequence[dict[str, Any]], target: float) -> dict[str, Any]:
    """Return a run's row, from its epochs' records.

    Seconds and bytes are an epoch's, the median; ``accuracy``, staleness and ``dropped`` the last one's; ``target_s``
    the training seconds until the first epoch that ended in an accuracy of at least ``target`` had ended, None where
    none did.
    """
    last = records[-1]
    of_all = {key: median(record[key] for record in records) for key in ("epoch_s", "samples_per_s", "wait_s")}
    of_last = {key: last[key] for key in ("accuracy", "staleness_p50", "staleness_p99", "dropped", "n_ranks")}
    return {
        **of_all,
        **of_last,
        "target_s": reached_s(records, target),
        "mb": median(record["bytes_moved"] for record in records) / 1e6,
        "mb_sent": median(record["bytes_sent"] for record in records) / 1e6,
    }


def reached_s(records: Sequence[dict[str, Any]], target: float) -> float | None:
    """Return the training seconds until an epoch ended in at least this accuracy; None where none did."""
    spent_s = 0.0
    for record in records:
        spent_s += record["epoch_s"]
        if record["accuracy"] >= target:
            return spent_s
    return None


def middle(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians of several runs of the same, and the ``low`` and ``high`` of their seconds an epoch."""
    found = {}
    for key in rows[0]:
        values = [each[key] for each in rows if each[key] is not None]
        missing = len(values) < len(rows)
        found[key] = None if missing or not values else median(values)
    seconds = [each["epoch_s"] for each in rows]
    return {**found, "n_ranks": rows[0]["n_ranks"], "low": min(seconds), "high": max(seconds), "n_runs": len(rows)}
