"""Traces of whole runs: what stands in them is what happened, on one clock, and it changes no bit."""

import json

from tests.helpers.suite import IS_FULL
from tests.ranks.harness import ranks
from tests.ranks.training import folder, train

#: the model's gradients make two buckets of this
COLLECTIVES = ("shared", "buffer", "{name: buffer, bucket_bytes: 64}")

MODES = (
    "sync.mode=allreduce",
    "sync.mode=sync_ps",
    "sync={mode: sync_ps, server: colocated}",
    "sync={mode: async_ps}",
    "sync={mode: hogwild}",
    "sync={mode: easgd, period: 2}",
    "sync={mode: local_sgd, every: 2}",
)


@ranks(1, 3)
def trace_shows_every_rank_and_layer(world):
    for at, mode in enumerate(MODES):
        for collective in COLLECTIVES if IS_FULL else COLLECTIVES[at % 3 :][:1]:
            with folder(world) as where:
                keys = [mode, f"collective={collective}", "record.trace=2", "train.epochs=2"]
                records, _, run = train(world, world.size, where, *keys)
                check(world, mode, collective, records, json.loads((run / "trace.json").read_text())["traceEvents"])


def check(world, mode, collective, records, events):
    drawable(events)
    spans = {rank: [e for e in events if e["ph"] == "X" and e["pid"] == rank] for rank in range(world.size)}
    assert {e["pid"] for e in events} == set(range(world.size))
    assert any(e["name"] == "checkpoint" for e in spans[0])
    dedicated = records[-1]["server"] == "dedicated"
    for rank, own in spans.items():
        names = {e["name"] for e in own}
        assert {"evaluate", "drain"} <= names, mode
        if rank or not dedicated:
            drawn = any(word in mode for word in ("async", "hogwild", "easgd"))  # batches: some rank may get none
            assert sum(e["name"] == "gradients" for e in own) in range(0 if drawn else 4, 5), mode
            assert {name.split()[0] for name in names if name.endswith("forward")} == {
                name.split()[0] for name in names if name.endswith("backward")
            }
            nested(own)
    assert any(e["name"] == "update" for own in spans.values() for e in own) or "local" in mode or "easgd" in mode, mode
    if world.size > 1 and "allreduce" in mode:
        together(spans)
        assert ("buffer" in collective) == any(e["tid"] for own in spans.values() for e in own)
    assert {e["name"] for e in events if e["ph"] == "C"} == {"bytes moved", "staleness", "samples"}
    if not dedicated:
        assert [e["args"] for e in events if e["ph"] == "C" and "bytes moved" in e["args"]]


def drawable(events):
    """Every track has a name and begins at 0 or later, and none of its spans ends in the midst of another."""
    named = {(e["name"], e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M"}
    tracks = {}
    for e in events:
        assert e["ph"] in "XCM", e
        assert e.get("ts", 0) >= 0, e
        if e["ph"] == "X":
            begins, lasts = round(e["ts"] * 1000), round(e["dur"] * 1000)
            tracks.setdefault((e["pid"], e["tid"]), []).append((begins, begins + lasts, e["name"]))
        if e["ph"] == "C":
            assert list(e["args"]) == [e["name"]], e
    for (rank, thread), spans in tracks.items():
        assert named["process_name", rank, 0] == f"rank {rank}"
        assert named["thread_name", rank, thread] == (f"bucket {thread - 1}" if thread else "rank")
        around = []
        for begins, ends, name in sorted(spans, key=lambda span: (span[0], -span[1])):
            while around and around[-1][1] <= begins:
                around.pop()
            assert not around or ends <= around[-1][1], f"{name} of rank {rank} ends behind {around[-1]}, {ends}"
            around.append((begins, ends, name))


def nested(spans):
    """No layer's pass sticks out of the gradients of a turn."""
    turns = [(e["ts"], e["ts"] + e["dur"]) for e in spans if e["name"] == "gradients"]
    for e in spans:
        if e["name"].endswith(("forward", "backward")):
            begins, ends = e["ts"], e["ts"] + e["dur"]
            assert any(begin <= begins + 0.01 and ends <= end + 0.01 for begin, end in turns), e


def together(spans):
    """On one clock, no rank ends an exchange before the last one has begun it."""
    exchanges = [[e for e in own if e["name"] == "exchange" and not e["tid"]] for own in spans.values()]
    for of_turn in zip(*exchanges, strict=True):
        assert max(e["ts"] for e in of_turn) < min(e["ts"] + e["dur"] for e in of_turn)


@ranks(3, virtual=True)
def tracing_changes_no_bit(world):
    with folder(world) as where:
        plain, _, _ = train(world, 3, where)
        traced, _, _ = train(world, 3, where, "record.trace=true")
        assert [r["params_sha256"] for r in plain] == [r["params_sha256"] for r in traced]
