"""Traces of real runs, whose ranks join, leave and die: the model of membership can do each of them."""

import pytest

from tests.helpers import launcher, runs
from tests.helpers.seeds import seeded
from tests.helpers.traces import can_be_done, traces_of

STEPS = 4
KEYS = ("train.reproducible=any_workers", "train.global_batch=24", f"dataset.samples={24 * STEPS}")
#: of a real run: rank 2 joins after the first step, and rank 1 is killed after the second
TRACE = (
    "VIEW 3,COMMIT,VIEW 7,COMMIT,LOSS,LEADS 0,VIEW 5,COMMIT,COMMIT",
    "VIEW 3,STEP,HEARD_CHANGE,VIEW 7",
    "VIEW 3,HEARD_CHANGE,VIEW 7,STEP,LOSS,LEADS 0,HEARD_GOES_ON,VIEW 5,STEP,STEP,HEARD_ENDED",
)

#: of another one: rank 3, a spare, is killed, which rank 0 notices when it tells all of a change
TOLD = (
    "VIEW 7,COMMIT,COMMIT,LOSS,LEADS 0,VIEW 7,COMMIT,COMMIT",
    *["VIEW 7,STEP,STEP,HEARD_CHANGE,VIEW 3,LOSS,LEADS 0,HEARD_GOES_ON,VIEW 7,STEP,STEP,HEARD_ENDED"] * 2,
    "VIEW 7",
)


def drawn(draw):
    """Return ranks, how many train at first, a schedule of one change and one kill, and the rank that is killed."""
    n = draw.choice((3, 4))
    victim = draw.choice((None, *range(n)))
    whats = [str(draw.choice((n, n - 2)))] * draw.randint(0, 1) + [f"kill-{victim}"] * (victim is not None)
    draw.shuffle(whats)
    steps = sorted(draw.randint(1, STEPS) for _ in whats)
    return n, n - 1, ",".join(f"{step}:{what}" for step, what in zip(steps, whats, strict=True)), victim


@pytest.mark.full
@pytest.mark.parametrize("number", range(20))
def test_real_run_is_one_of_the_model(ulfm, tmp_path, number):
    draw = seeded("schedule")
    n, first, schedule, victim = (3, 2, "1:3,2:kill-0", 0) if number == 0 else drawn(draw)
    sync = draw.choice(("allreduce", "{mode: sync_ps, server: colocated}"))
    collective = draw.choice(("shared", "buffer"))
    path = runs.write(tmp_path / "run.yaml", 1, "continue")
    (tmp_path / "events").mkdir()
    keys = (*KEYS, f"elastic.ranks={first}", f"sync={sync}", f"collective={collective}")
    words = ["-m", "tests.helpers.scaling", schedule or f"{STEPS + 1}:1", path, "--quiet", *keys]
    ended = launcher.run(ulfm, n, words, TRACE=str(tmp_path / "events"))
    assert ended.status == 0 or "cannot go on without it" in ended.err, ended
    traces = traces_of(tmp_path / "events", n)
    assert can_be_done(traces, victim, STEPS, tmp_path / "spin"), "\n".join([schedule, *map(",".join, traces)])


@pytest.mark.full
@pytest.mark.parametrize(
    ("rank", "at", "event"),
    [
        (0, 1, None),
        (0, 2, "VIEW 3"),
        (2, 2, "VIEW 3"),
        (2, 7, "VIEW 7"),
        (2, 4, "STEP"),
        (0, 4, None),
        (2, 5, "LEADS 2"),
        (2, 6, "HEARD_CHANGE"),
        (0, 6, "VIEW 7"),
        (2, 9, None),
        (2, 10, None),
        (2, 10, "HEARD_GOES_ON"),
    ],
)
def test_trace_is_refused_where_a_rank_did_something_else_or_less(tmp_path, rank, at, event):
    traces = [line.split(",") for line in TRACE]
    traces[rank][at : at + 1] = [event] if event else []
    assert not can_be_done(traces, 1, STEPS, tmp_path / "spin")


@pytest.mark.parametrize(("lines", "victim"), [(TRACE, 1), (TOLD, 3)])
def test_trace_of_a_run_is_accepted(tmp_path, lines, victim):
    assert can_be_done([line.split(",") for line in lines], victim, STEPS, tmp_path / "spin")
