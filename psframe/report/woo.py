"""Tables 1, 4, 5 and 7 of Woo et al. 2020 (:func:`tables`): the paper's values beside those measured here."""

from collections.abc import Mapping, Sequence

from psframe.report import paper
from psframe.report.html import table
from psframe.report.paper import NAMES
from psframe.report.tables import OPERATIONS, Row, environment
from psframe.report.values import NONE, between, column, size

HOST, FOUR = (0, False), (4, False)


def tables(rows: Sequence[Row]) -> str:
    return (
        _memories("table-woo-1", "Table 1", "buffer", HOST, paper.WOO_1, rows)
        + _memories("table-woo-4", "Table 4", "c", FOUR, paper.WOO_4, rows)
        + _containers(rows)
        + _modes(rows)
    )


def _pick(rows: Sequence[Row], **wanted: object) -> list[Row]:
    return [row for row in rows if all(getattr(row, key) == value for key, value in wanted.items())]


def _largest(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of the largest arrays."""
    largest = max((row.n_bytes for row in rows), default=0)
    return [row for row in rows if row.n_bytes == largest]


def _comparable(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of the array size measured in most environments; of several sizes, the largest."""
    environments: dict[float, set[object]] = {}
    for row in _pick(rows, method="buffer"):
        environments.setdefault(row.n_bytes, set()).add(row.environment)
    best = max(environments, key=lambda n_bytes: (len(environments[n_bytes]), n_bytes), default=0)
    return [row for row in rows if row.n_bytes == best]


def _memories(
    name: str,
    which: str,
    method: str,
    of: tuple[int, bool],
    known: Mapping[str, tuple[int, float]],
    rows: Sequence[Row],
) -> str:
    """Return a table of a method's time in DDR relative to that in high-bandwidth memory."""
    lines, missing = [], []
    for operation in OPERATIONS:
        ranks, percent = known[operation]
        cells = _ratio(_pick(rows, operation=operation, method=method, environment=of), ranks)
        missing += [] if cells else [NAMES[operation]]
        lines.append([NAMES[operation], str(ranks), f"{percent:.0f} %", *(cells or [NONE] * 4)])
    notes = ""
    if missing:
        has_hbw = any(row.memory == "hbw" for row in rows)
        why = f"{method} was not measured in both memories on the {environment(of)}"
        why = why if has_hbw else "no high-bandwidth memory was measured"
        notes = f"{NONE}: {why} ({', '.join(missing)})."
    caption = (
        f"DDR time in percent of the time in high-bandwidth memory (MCDRAM): method {method}, {environment(of)}; the "
        f"paper's {which}. The range here is from quartile to quartile; where the paper's number of ranks was not "
        "measured, the largest one is shown."
    )
    head = ["<operation", "*ranks, paper", "*paper", "ranks, here", "bytes, here", "here", "range"]
    return table(name, caption, head, lines, notes)


def _ratio(rows: Sequence[Row], ranks: int) -> list[str] | None:
    pairs = [(a, b) for a in _pick(rows, memory="ddr") for b in _pick(rows, memory="hbw")]
    pairs = [(a, b) for a, b in pairs if (a.n_ranks, a.n_bytes, a.mode) == (b.n_ranks, b.n_bytes, b.mode)]
    if not pairs:
        return None
    ddr, hbw = max(pairs, key=lambda pair: (pair[0].n_ranks == ranks, pair[0].n_ranks, pair[0].n_bytes))
    middle, low, high = (100 * x / y for x, y in zip(ddr.seconds, (hbw.seconds[i] for i in (0, 2, 1)), strict=True))
    return [str(ddr.n_ranks), size(ddr.n_bytes), f"{middle:,.0f} %", between((middle, low, high)) + " %"]


def _containers(rows: Sequence[Row]) -> str:
    """Return a table of the cost of containers."""
    lines, settings = [], []
    for operation in OPERATIONS:
        chosen = _comparable(_pick(rows, operation=operation))
        # one memory and one number of ranks for all environments, as near to the paper's as possible
        environments = {
            m: {row.environment for row in _pick(chosen, method="buffer", memory=m)} for m in ("hbw", "default", "ddr")
        }
        memory = max(environments, key=lambda m: (len(environments[m]), HOST in environments[m]))
        chosen = _pick(chosen, memory=memory)
        ranks = _common(_pick(chosen, method="buffer"))
        chosen = _pick(chosen, n_ranks=ranks)
        if ranks:
            settings.append(f"{NAMES[operation]}: {size(chosen[0].n_bytes)}, {ranks} ranks, memory {memory}")
        lines += _container_rows(operation, chosen)
    caption = (
        "What containers cost: seconds, and how many times those on the host; the paper's Table 5 (method buffer, "
        f"MCDRAM, {paper.WOO_5_RANKS} ranks), and what shares memory between containers, which the paper has not."
    )
    head = [
        "<operation",
        "<environment",
        "<method",
        "*paper (s)",
        "*paper, × host",
        "here (s)",
        "quartiles",
        "here, × host",
    ]
    notes = (
        f"Here {'; '.join(settings)}. {NONE}: not measured there." if settings else f"{NONE}: buffer was not measured."
    )
    return table("table-woo-5", caption, head, lines, notes)


def _common(rows: Sequence[Row]) -> int:
    """Return the paper's number of ranks, or else the one measured in most environments; 0 without rows."""
    environments = {row.n_ranks: {other.environment for other in rows if other.n_ranks == row.n_ranks} for row in rows}
    best = max((len(places) for places in environments.values()), default=0)
    counts = [n for n, places in environments.items() if len(places) == best]
    return paper.WOO_5_RANKS if paper.WOO_5_RANKS in counts else max(counts, default=0)


def _container_rows(operation: str, rows: Sequence[Row]) -> list[list[str]]:
    known = paper.WOO_5[operation]
    host = next(iter(_pick(rows, method="buffer", environment=HOST)), None)
    wanted = [((n, False), "buffer") for n in known]
    wanted += sorted(
        (row.environment, row.method) for row in rows if row.share_ipc and row.method in ("buffer", "shared")
    )
    wanted = list(dict.fromkeys(wanted))
    measured = [next(iter(_pick(rows, environment=env, method=method)), None) for env, method in wanted]
    here = column([row.seconds[0] if row else None for row in measured])
    lines = []
    for (env, method), row, seconds in zip(wanted, measured, here, strict=True):
        paper_s = known.get(env[0]) if method == "buffer" and not env[1] else None
        lines.append(
            [
                NAMES[operation],
                environment(env),
                method,
                NONE if paper_s is None else f"{paper_s:.3f}",
                NONE if paper_s is None else f"{paper_s / known[0]:.2f}",
                seconds,
                between(row.seconds) if row else NONE,
                f"{row.seconds[0] / host.seconds[0]:.2f}" if row and host else NONE,
            ]
        )
    return lines


def _modes(rows: Sequence[Row]) -> str:
    """Return cluster modes side by side; "" unless both were measured."""
    lines = []
    for operation in OPERATIONS:
        measured = _largest(_pick(rows, operation=operation, method="buffer", memory="hbw", environment=FOUR))
        both = {row.n_ranks for row in _pick(measured, mode="quadrant")} & {
            row.n_ranks for row in _pick(measured, mode="SNC-4")
        }
        ranks = paper.WOO_7_RANKS if paper.WOO_7_RANKS in both else max(both, default=0)
        if ranks:
            ours = [_pick(measured, mode=mode, n_ranks=ranks)[0].seconds for mode in ("quadrant", "SNC-4")]
            cells = [*column([seconds[0] for seconds in ours]), *map(between, ours)]
            lines.append([NAMES[operation], *(f"{s:.3f}" for s in paper.WOO_7[operation]), str(ranks), *cells])
    if not lines:
        return ""
    caption = (
        "Cluster modes, seconds: method buffer, four containers, high-bandwidth memory; the paper's Table 7 "
        f"({paper.WOO_7_RANKS} ranks)."
    )
    head = [
        "<operation",
        "*paper, quadrant",
        "*paper, SNC-4",
        "ranks, here",
        "quadrant",
        "SNC-4",
        "quartiles, quadrant",
        "quartiles, SNC-4",
    ]
    return table("table-woo-7", caption, head, lines)
