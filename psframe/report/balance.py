"""Section on the shares of a step (:func:`sections`), where they follow the workers' speed: ``sync.balance: speed``."""

from collections.abc import Sequence

from psframe.report.charts import Series, lines
from psframe.report.html import Section, figure, legend, note
from psframe.report.read import Run
from psframe.report.scale import Axis
from psframe.report.training import line_style
from psframe.report.values import number

MAX_RUNS = 12
MAX_WORKERS = 24  # of which a run has a line


def sections(runs: Sequence[Run]) -> list[Section]:
    with_shares = [(run.label, shares) for run in runs if (shares := _by_worker(run))]
    if not with_shares:
        return []
    drawings, n_workers = [], max(len(shares) for _, shares in with_shares)
    for label, shares in with_shares[:MAX_RUNS]:
        series = _series(shares)
        drawings.append(
            lines(
                "Samples of a step by worker",
                series,
                Axis("epochs", whole=True),
                Axis("samples of a full step", zero=True),
                small=True,
                heading=label,
            )
        )
    caption = (
        "How many samples of a full step each worker takes, at the end of each epoch: in proportion to the speed that "
        "was measured of it."
    )
    more = [f"The first {MAX_RUNS} of {len(with_shares)} runs are drawn."] if len(with_shares) > MAX_RUNS else []
    more += [f"Of a run, the first {MAX_WORKERS} workers have a line."] if n_workers > MAX_WORKERS else []
    longest = max((shares for _, shares in with_shares), key=len)
    body = figure("figure-shares", caption, drawings, legend(_series(longest)), small=True) + note(" ".join(more))
    return [Section("shares", "Shares of a step", body)]


def _series(by_worker: Sequence[Sequence[tuple[float, float]]]) -> list[Series]:
    return [
        Series(f"worker {worker}", points, line_style(worker, len(points)))
        for worker, points in enumerate(by_worker[:MAX_WORKERS])
    ]


def _by_worker(run: Run) -> list[list[tuple[float, float]]]:
    """Return (epoch, samples) of each worker; none of a run without shares, or whose file has anything else."""
    by_worker: list[list[tuple[float, float]]] = []
    for record in run.records:
        epoch, shares = number(record.get("epoch"), 0), record.get("shares")
        if epoch is None or not isinstance(shares, list):
            continue
        for worker, share in enumerate(shares[: MAX_WORKERS + 1]):
            if (samples := number(share, 0)) is not None:
                by_worker += [[] for _ in range(worker + 1 - len(by_worker))]
                by_worker[worker].append((epoch, samples))
    return by_worker
