"""Section on psframe as PyTorch's backend (:func:`sections`): what ``bench torch`` and a job's record measured."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from psframe.report.html import Section, table
from psframe.report.read import Json
from psframe.report.values import NONE, between, list_of, number, said, seconds, size, spread, text

MOST = 200  # rows of a table

Rows = list[tuple[Any, ...]]


def sections(benches: Sequence[tuple[Path, Json]], records: Sequence[tuple[Path, Json]]) -> list[Section]:
    """Return the section on files of ``bench torch``, and that on records of ranks, as far as there are rows."""
    found = []
    measured = [line for _, bench in benches for line in _measured(bench)][:MOST]
    if measured:
        caption = (
            "psframe's backend beside another one: milliseconds of the slowest rank, medians. A ratio is taken within "
            "a round, so it spreads less than the times."
        )
        head = ["ranks", "<what", "psframe, ms", "<other", "its ms", "times as fast", "quartiles"]
        found.append(Section("torch", "PyTorch's backend", table("table-torch", caption, head, measured)))
    exchanged = _exchanged([record for _, record in records])[:MOST]
    if exchanged:
        caption = (
            "Collectives of a job under PyTorch, over all ranks. A wait is the time that a rank spends in one until "
            "it has ended; a rank that waits little is the one that others wait for."
        )
        head = ["<group", "<collective", "<type", "ranks", "calls a rank", "bytes a call", "mean wait"]
        head += ["least of a rank", "longest wait", "its rank"]
        found.append(
            Section("torch_record", "PyTorch's collectives", table("table-torch_record", caption, head, exchanged))
        )
    return found


def _measured(bench: Json) -> list[list[str]]:
    lines = []
    for row in list_of(bench.get("rows")):
        ranks, ours, theirs = number(row.get("ranks"), 1), spread(row.get("psframe_ms")), spread(row.get("against_ms"))
        times = spread(row.get("ratio"))
        if ranks and ours and theirs:
            factor = [said(times[0]), between(times)] if times else [NONE, NONE]
            other = text(row.get("against"), 20)
            lines.append([f"{ranks:.0f}", text(row.get("what"), 40), said(ours[0]), other, said(theirs[0]), *factor])
    return lines


def _exchanged(records: Sequence[Json]) -> list[list[str]]:
    """Return a line for each collective and type of each group, over its ranks."""
    by_name: dict[tuple[str, str, str], Rows] = defaultdict(list)
    for record in records:
        rank = number(record.get("rank"), 0)
        for row in list_of(record.get("collectives")):
            calls, n_bytes = number(row.get("calls"), 1), number(row.get("bytes"), 0)
            waited, longest = number(row.get("waited_s"), 0), number(row.get("longest_wait_s"), 0)
            if rank is not None and calls and None not in (n_bytes, waited, longest):
                key = (text(record.get("group"), 40), text(row.get("collective"), 20), text(row.get("dtype"), 20))
                by_name[key].append((rank, calls, n_bytes, waited, longest))
    return [_line(key, rows) for key, rows in sorted(by_name.items())]


def _line(key: tuple[str, str, str], rows: Rows) -> list[str]:
    calls = sum(row[1] for row in rows)
    waits = [row[3] / row[1] for row in rows]
    longest = max(rows, key=lambda row: row[4])
    return [
        *(key[0], key[1], key[2] or NONE, str(len(rows)), f"{calls / len(rows):,.0f}"),
        *(size(sum(row[2] for row in rows) / calls), seconds(sum(row[3] for row in rows) / calls)),
        *(seconds(min(waits)), seconds(longest[4]), f"{longest[0]:.0f}"),
    ]
