"""Causes that make a run slow, from its records (:func:`of_run`): only what stands out is told."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from psframe.config import untrusted
from psframe.doctor.why.cause import Cause
from psframe.doctor.why.counts import number
from psframe.doctor.why.evidence import shown
from psframe.errors import UserError, reason
from psframe.record import metrics
from psframe.record.folder import Folder

LEAST_S = 2.0  # of training, below which nothing is said of its time
LATE = 0.1  # share of the time in which others waited for a rank that was late (fault.late_s)
CHECKPOINTS, DATA, EXCHANGE = 0.2, 0.4, 0.5  # share of an epoch
SHORT, MOVES = 0.25, 0.4  # the same of computing, below which a step is too short where so much moves
MISPLACED = 0.95  # share of pages, below which they are not where they were asked to be
FAR, FAR_PAGES = 0.5, 2560  # share of a role's pages on another node than its rank's, and how many at least
GROWS = 1.5  # times the memory of a rank in the middle of the run, at its end
MOST_BYTES = 64 << 20

Record = Mapping[str, Any]


def records_of(path: Path, file: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """Return a run's records; raises UserError if they cannot be read."""
    try:
        return metrics.read(path, file)
    except OSError as error:
        raise UserError(
            f"why must be given the folder of a run, got {str(path)!r} ({reason(error)}); check the path"
        ) from None


def of_run(path: Path) -> list[Cause]:
    """Return what makes a run slow, the most weighty first. Raises UserError if it has no records."""
    records, usage = records_of(path), records_of(path, "usage.jsonl")
    if not records:
        raise UserError(f"why must be given a run with an epoch or an incident, got none in {str(path)!r}; train on")
    found = [*faults(records), *times(records), *misplaced(records), *far(_placement(path)), *memory(usage)]
    return sorted(found, key=lambda cause: -cause.weight)


def faults(records: Sequence[Record]) -> Iterator[Cause]:
    """Ranks that died, steps that were dropped, and ranks that were late."""
    lost = [(record["epoch"], event) for record in records for event in _events(record, "lost")]
    for epoch, event in lost[-3:]:
        ranks = ", ".join(str(int(number(rank))) for rank in _list(event.get("ranks"))[:8])
        yield Cause(
            80, f"Rank {ranks} died in epoch {epoch}, and the others went on without it.", [], "See its incident file."
        )
    skipped = sum(len(_list(record.get("skipped"))) for record in records)
    if skipped:
        yield Cause(
            60,
            f"{skipped:,} steps were dropped, as gradients were not finite.",
            [],
            "Lower optimizer.lr, or warm up with schedule.warmup_epochs.",
        )
    total = sum(_s(record, "epoch_s") for record in records)
    late: dict[str, float] = {}
    for record in records:
        by_rank = record.get("late")
        for rank, seconds in by_rank.items() if isinstance(by_rank, dict) else ():
            late[rank] = late.get(rank, 0.0) + number(seconds)
    for rank, seconds in sorted(late.items(), key=lambda item: -item[1])[:3]:
        if seconds > LATE * total:
            yield Cause(
                75,
                f"The others waited for rank {shown(rank, 10)} for {seconds:,.1f} s of {total:,.1f} s.",
                [],
                "`psframe dump RUN` while it trains tells what it does; look at its core, its host and its data.",
            )


def times(records: Sequence[Record]) -> Iterator[Cause]:
    """Shares of an epoch that stand out; the first epoch, which may compile and touch memory, does not count."""
    later = [record for record in records[1:] or records if _s(record, "epoch_s") > 0]
    if sum(_s(record, "epoch_s") for record in later) < LEAST_S:
        return

    def share(key: str) -> float:
        return median(_s(record, key) / _s(record, "epoch_s") for record in later)

    if share("checkpoint_s") > CHECKPOINTS:
        yield Cause(
            65,
            f"Checkpoints hold training up for {share('checkpoint_s'):.0%} of an epoch.",
            [f"{median(_s(record, 'checkpoint_s') for record in later):.2f} s an epoch"],
            "Write fewer (checkpoint.every_epochs, checkpoint.every_seconds), or to a faster disk (record.dir).",
        )
    if share("data_s") > DATA:
        yield Cause(
            55,
            f"Preparing batches takes {share('data_s'):.0%} of an epoch.",
            [],
            "Leave out augmentation, or give each rank more threads.",
        )
    # a server that workers do not wait for updates beside them
    is_beside = later[-1].get("server") == "dedicated" and later[-1].get("sync_mode") != "sync_ps"
    exchange = share("exchange_s") + (0.0 if is_beside else share("update_s"))
    # ranks that have little to compute wait for each other's turn on a core, too: all of them, and no longer than that
    is_short = share("compute_s") < SHORT and exchange > max(MOVES, share("wait_s"))
    if is_short or (exchange > EXCHANGE and share("wait_s") < 0.2):
        batch = int(number(later[-1].get("batch_size")))
        yield Cause(
            50,
            f"Exchange and update take {exchange:.0%} of an epoch: {batch} samples are few for what a step moves.",
            [f"compute takes {share('compute_s'):.0%}, waiting {share('wait_s'):.0%}"],
            "Raise train.batch_size, use collective=shared on one node, or fewer ranks; `psframe tune` finds out.",
        )


def misplaced(records: Sequence[Record]) -> Iterator[Cause]:
    """Pages that are not where the config asks for them."""
    placed, pages = records[-1].get("placed"), records[-1].get("pages")
    for place, value in placed.items() if isinstance(placed, dict) else ():
        counts = pages.get(place) if isinstance(pages, dict) else None
        is_unknown = isinstance(counts, dict) and number(counts.get("denied")) > 0  # the kernel does not tell
        if 0 <= number(value) < MISPLACED and not is_unknown:
            yield Cause(
                70,
                f"Only {number(value):.0%} of the pages of {shown(place, 60)} are where the config asks for them.",
                [],
                "`psframe doctor CONFIG` tells how much room those nodes have; see placement.spill and "
                "placement.verify: error.",
            )


def far(ranks: Sequence[Mapping[str, Any]]) -> Iterator[Cause]:
    """Pages of a rank's own memory that nobody placed, and that lie on another node than the rank's."""
    for rank in ranks:
        near, roles = str(rank.get("numa_node")), rank.get("roles")
        if not isinstance(roles, dict) or not near.isdigit():
            continue
        for role in ("activations", "gradients"):
            found = roles.get(role)
            if not isinstance(found, dict) or found.get("asked") != "default":
                continue
            given = found.get("pages")
            pages: dict[str, Any] = given if isinstance(given, dict) else {}
            counts = {node: number(n) for node, n in pages.items() if node.isdigit()}
            away = sum(n for node, n in counts.items() if node != near)
            if away > FAR_PAGES and away > FAR * sum(counts.values()):
                yield Cause(
                    68,
                    f"{away / sum(counts.values()):.0%} of the {role} of rank {int(number(rank.get('rank')))} lie on "
                    f"another NUMA node than node {near}, which it runs on.",
                    [f"pages by node: {', '.join(f'{node}: {n:,.0f}' for node, n in sorted(counts.items()))}"],
                    "Bind ranks before they touch memory (affinity: numa), or place the role (placement).",
                )
                return


def memory(usage: Sequence[Record]) -> Iterator[Cause]:
    """Ranks whose memory grows."""
    by_rank: dict[int, list[float]] = {}
    for sample in usage:
        by_rank.setdefault(int(number(sample.get("rank"))), []).append(number(sample.get("rss_bytes")))
    for rank, sizes in by_rank.items():
        middle, last = max(sizes[: len(sizes) // 2 + 1]), sizes[-1]
        if len(sizes) >= 60 and last > GROWS * middle > 0 and last - middle > 256 << 20:
            yield Cause(
                66,
                f"The memory of rank {rank} grows: {middle / 2**20:,.0f} MiB in the middle, {last / 2**20:,.0f} MiB at "
                "the end.",
                [],
                "Look at your callbacks, metrics and dataset: something keeps what it has seen.",
            )
            return


def _s(record: Record, key: str) -> float:
    return number(record.get(key))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _events(record: Record, key: str) -> Iterator[Mapping[str, Any]]:
    return (event for event in _list(record.get(key)) if isinstance(event, dict))


def _placement(path: Path) -> list[Mapping[str, Any]]:
    """Return the ranks of placement.json; none if it is missing or damaged."""
    try:
        with Folder.chosen(path) as folder, folder.open("placement.json") as file:
            content = untrusted.of_json(untrusted.all_of(file, MOST_BYTES, path))
    except (OSError, ValueError):
        return []
    return [
        rank for rank in _list(content.get("ranks") if isinstance(content, dict) else None) if isinstance(rank, dict)
    ]
