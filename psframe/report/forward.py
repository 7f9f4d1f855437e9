"""Section on ``bench forward`` (:func:`sections`): a forward pass by number of ranks, as Hasheminezhad et al. 2020."""

from collections.abc import Sequence
from pathlib import Path

from psframe.report import paper
from psframe.report.charts import Series, lines, styled
from psframe.report.html import Section, figure, legend, table
from psframe.report.read import Json
from psframe.report.scale import Axis, ranks_axis
from psframe.report.scaling import whole
from psframe.report.values import Spread, between, column, list_of, number, said, spread, text

Measured = list[tuple[float, Spread, float | None]]  #: ranks, seconds, samples per second


def sections(benches: Sequence[tuple[Path, Json]]) -> list[Section]:
    times: list[Series] = []
    shares: list[Series] = []
    rows: list[list[str]] = []
    for path, bench in benches:
        measured = _kept(bench)
        if measured:
            name = f"{text(bench.get('model'), 30)}, batch {text(bench.get('batch'), 12)}"
            name += f" ({text(path.stem, 30)})" if len(benches) > 1 else ""
            drawn, best, share = _series(name, measured, len(shares))
            times += [drawn, best]
            shares.append(share)
            rows += _rows(name, measured, share)
    if not rows:
        return []
    x = ranks_axis([n for series in shares for n, _ in series.points])
    machines = {f"{text(b.get('machine'))}, {text(b.get('cores'), 9)} core(s)" for _, b in benches if b.get("machine")}
    caption = (
        "Seconds of a forward pass over one batch, split among the ranks, with quartiles; efficiency against the "
        f"fewest ranks. Measured on: {'; '.join(sorted(machines)) or 'unknown'}."
    )
    drawings = [
        lines("Seconds of a forward pass against ranks", times, x, Axis("seconds a forward pass")),
        lines("Efficiency of the forward pass against ranks", [*shares, whole(shares)], x, Axis("efficiency (%)")),
    ]
    head = ["<model", "ranks", "seconds", "quartiles", "samples/s", "efficiency"]
    body = figure("figure-forward", caption, drawings, legend(shares))
    body += table("table-forward", "The same in numbers.", head, rows, _AFTER)
    return [Section("forward", "Forward pass", body)]


_AFTER = (
    f"After {paper.HASHEMINEZHAD}: the forward pass of a 4-layer 1-D network at batch 8000 on 1 to 128 nodes, where "
    "Phylanx took at least 18 % less time than Horovod at 32 nodes and more. Here ranks are counted, not nodes."
)


def _kept(bench: Json) -> Measured:
    """Return the valid rows of a bench, by ranks."""
    measured = []
    for row in list_of(bench.get("rows")):
        n, seconds = number(row.get("n_ranks"), 1), spread(row.get("seconds"))
        if n and seconds:
            measured.append((n, seconds, number(row.get("samples_per_s"), 0)))
    return sorted(measured, key=lambda entry: entry[0])


def _series(name: str, kept: Measured, place: int) -> tuple[Series, Series, Series]:
    """Return the lines of seconds, ideal seconds, and efficiency."""
    fewest, (took, _, _), _ = kept[0]
    drawn = Series(name, [(n, s[0]) for n, s, _ in kept], styled(place), [(n, s[1], s[2]) for n, s, _ in kept])
    best = Series("ideal", [(n, took * fewest / n) for n, _, _ in kept], ideal=True)
    return drawn, best, Series(name, [(n, 100 * took * fewest / (s[0] * n)) for n, s, _ in kept], styled(place))


def _rows(name: str, kept: Measured, share: Series) -> list[list[str]]:
    medians = column([seconds[0] for _, seconds, _ in kept])
    return [
        [name, f"{n:.0f}", took, between(seconds), said(rate, 4), f"{percent:.1f} %"]
        for (n, seconds, rate), took, (_, percent) in zip(kept, medians, share.points, strict=True)
    ]
