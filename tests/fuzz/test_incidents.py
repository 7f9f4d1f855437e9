"""Whatever the files of an incident, or of a run, say: printable text, or one sentence."""

import io
import json
import os
from contextlib import redirect_stdout
from itertools import cycle

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from psframe.doctor.why.__main__ import main
from psframe.errors import UserError
from psframe.record import flight
from tests.fuzz.test_report import VALUES, changed
from tests.helpers import incidents
from tests.helpers.incidents import MINE, node, rank
from tests.helpers.suite import examples

FUZZ = settings(
    max_examples=examples(60),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
ESCAPES = [
    "\x1b[31mred",
    "\x1b]0;title\x07",
    "\x9b31m",
    "\u202egnihton",
    "\r\x08\x7f",
    "\0",
    "\u2028",
    "\ud800",
    "\udc80",
]
NAMES = [
    "<script>alert(1)</script>",
    "a\n\nno cause found",
    "é" * 3000,
    "",
    " ",
    "T",
    "D",
    "²",
    "{}%s",
    "../../etc/passwd",
]
TEXTS = st.sampled_from([*ESCAPES, *NAMES]) | st.text(max_size=9)
NUMBERS = [0, -1, 1, 2**31, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**400, 10**4299]
INTEGERS = st.sampled_from(NUMBERS) | st.integers()
FLOATS = st.sampled_from([0.0, -0.0, -1.0, 1e308, -1e308, 5e-324, 1e17]) | INTEGERS
#: what JSON's grammar leaves open, and what no number holds
RAW = ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 5000, "[" * 5000, '{"a":' * 5000, '"\\ud800"', "'", ""]


def bases():
    """Incidents of each kind, whose files are then changed."""
    waits = incidents.at_gate(0, events=incidents.steps(9, 0.1))
    busy = incidents.in_layer(1, stacks=MINE, delayed=0.9, cpus="0", events=incidents.steps(9, 0.3, (0.1, 0.2)))
    stores = rank(1, (flight.STORE, 0, 0, 4.0), state="D", call="io_schedule")
    short = incidents.changed(
        incidents.MACHINE, cgroup__groups__job__killed=3, pressure__memory__full=9e9, pressure__io__some=9e9
    )
    lost = "psframe: node 1 (b) cannot be reached"
    return [
        node([waits, busy], after=short),
        node([waits, incidents.stopped(1)], "asked"),
        node([waits, stores], after=short),
        node([waits, incidents.ended(1)], "death", 1, after=short),
        node([incidents.in_call(0), incidents.in_call(1, "Bcast")]),
        node([incidents.for_nodes(0), waits], message=lost, hosts=["a", "b"]),
        node([waits], "exception", 0, "ValueError: no", details='  File "/home/me/a.py", line 3, in f\n'),
        node([waits], "error", 0, "psframe: lr must be lower"),
    ]


def leaves(plain, path=()):
    """The paths of what is no list and no mapping in a JSON value."""
    if not isinstance(plain, dict | list):
        return [path]
    pairs = plain.items() if isinstance(plain, dict) else enumerate(plain)
    return [found for key, value in pairs for found in leaves(value, (*path, key))]


@st.composite
def hostile(draw, plain):
    """A JSON value in which some leaves are other ones of their type."""
    plain = json.loads(json.dumps(plain))
    for path in draw(st.lists(st.sampled_from(leaves(plain)), max_size=8)):
        at = plain
        for key in path[:-1]:
            at = at[key]
        old = at[path[-1]]
        kinds = {str: TEXTS, float: FLOATS, int: INTEGERS, bool: st.booleans()}
        at[path[-1]] = draw(kinds.get(type(old), VALUES))
    return plain


def told(path, *options):
    """Return what the command prints, or its sentence; anything else that it raises is a defect."""
    with redirect_stdout(io.StringIO()) as out:
        try:
            assert main([str(path), *options]) == 0
        except UserError as error:
            assert str(error).isprintable()
            return str(error)
    text = out.getvalue()
    unprintable = {c for c in text if not c.isprintable()} - {"\n"}
    assert not unprintable
    assert "Traceback" not in text
    return text


def survives(path):
    for options in ((), ("--all", "--stacks")):
        told(path, *options)


@FUZZ
@given(st.data(), st.sampled_from(bases()))
def test_incidents_whose_values_are_hostile(tmp_path_factory, data, base):
    root = tmp_path_factory.mktemp("fuzz")
    (root / "incident-1.json").write_text(json.dumps({"format": 1, **data.draw(hostile(base))}))
    survives(root)


@FUZZ
@given(st.data(), st.sampled_from(bases()))
def test_incidents_of_which_parts_are_others(tmp_path_factory, data, base):
    root = tmp_path_factory.mktemp("fuzz")
    for name in ("incident-1.json", "incident-1.node-2.json"):
        (root / name).write_text(json.dumps(data.draw(changed({"format": 1, **base}))))
    survives(root)


@FUZZ
@given(st.data(), st.sampled_from(bases()))
def test_facts_and_machines_that_are_anything(tmp_path_factory, data, base):
    root = tmp_path_factory.mktemp("fuzz")
    facts, machine = data.draw(changed(base["facts"])), data.draw(changed(base["samples"][0]["machine"]))
    if isinstance(facts, dict) and isinstance(machine, dict):
        samples = [{**sample, "machine": machine} for sample in base["samples"]]
        samples[-1] = base["samples"][-1]
        (root / "incident-1.json").write_text(json.dumps({"format": 1, **base, "facts": facts, "samples": samples}))
        survives(root)


@FUZZ
@given(st.sampled_from(ESCAPES), st.sampled_from(bases()))
def test_text_that_is_hostile_everywhere(tmp_path_factory, text, base):
    root, path = tmp_path_factory.mktemp("fuzz"), []
    plain = json.loads(json.dumps({"format": 1, **base}))
    for *path, last in leaves(plain):
        at = plain
        for key in path:
            at = at[key]
        if isinstance(at[last], str) and last not in ("reason", "state"):
            at[last] += text
    (root / "incident-1.json").write_text(json.dumps(plain))
    survives(root)


@FUZZ
@given(st.sampled_from(ESCAPES), st.sampled_from([flight.STORE, flight.FORWARD]))
def test_states_of_processes_that_are_hostile(tmp_path_factory, text, kind):
    root = tmp_path_factory.mktemp("fuzz")
    ranks = [rank(0, (kind, 1, 0, 4.0), state=f"R{text}"), incidents.at_gate(1)]
    (root / "incident-1.json").write_text(json.dumps({"format": 1, **node(ranks)}))
    survives(root)


@FUZZ
@given(st.binary(max_size=60), st.integers(0, 4000))
def test_bytes(tmp_path_factory, content, at):
    root = tmp_path_factory.mktemp("fuzz")
    whole = json.dumps({"format": 1, **bases()[0]}).encode()
    for number, damaged in enumerate((content, whole[:at], whole[:at] + content + whole[at + len(content) :]), 1):
        (root / f"incident-{number}.json").write_bytes(damaged)
        survives(root / f"incident-{number}.json")


@FUZZ
@given(st.sampled_from(RAW), st.data())
def test_numbers_and_nesting_that_json_leaves_open(tmp_path_factory, raw, data):
    root = tmp_path_factory.mktemp("fuzz")
    text = json.dumps({"format": 1, **bases()[0]})
    numbers = [at for at, c in enumerate(text) if c in "0123456789" and text[at - 1] == " "]
    at = data.draw(st.sampled_from(numbers))
    end = next(n for n in range(at, len(text)) if text[n] in ",]}")
    (root / "incident-1.json").write_text(text[:at] + raw + text[end:])
    survives(root)


def link(path, folder):
    os.symlink(folder / "secret", path)


def to_itself(path, folder):
    os.symlink(path, path)


def dangling(path, folder):
    os.symlink(folder / "nowhere", path)


@pytest.mark.parametrize("name", ["incident-1.json", "metrics.jsonl", "usage.jsonl", "placement.json"])
@pytest.mark.parametrize(
    "make",
    [
        link,
        to_itself,
        dangling,
        lambda path, _: os.mkfifo(path),
        lambda path, _: path.mkdir(),
        lambda path, _: path.touch(),
    ],
    ids=["link", "to_itself", "dangling", "pipe", "folder", "empty"],
)
def test_files_that_are_none(tmp_path, name, make):
    (tmp_path / "secret").write_text("root:secret:0")
    run = tmp_path / "run"
    run.mkdir()
    if name != "metrics.jsonl":
        (run / "metrics.jsonl").write_text('{"epoch": 1, "epoch_s": 3.0}\n')
    make(run / name, tmp_path)
    survives(run)
    assert "secret" not in told(run).replace(str(tmp_path / "secret"), "")


@pytest.mark.parametrize(
    "path", ["a" * 300, "a/" * 3000, "\x1b[31m", "\udc80", "", ".", "/", "/dev/zero", "/proc/self/mem"]
)
def test_paths_that_lead_nowhere(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    survives(path)


RECORD = {
    **{"epoch": 1, "epoch_s": 4.0, "data_s": 2.0, "compute_s": 1.0, "exchange_s": 2.0, "update_s": 1.0, "wait_s": 0.1},
    **{"checkpoint_s": 1.5, "skipped": [1], "late": {"1": 3.0}, "lost": [{"ranks": [1, 2]}], "placed": {"data": 0.1}},
    "batch_size": 8,
}
PLACED = {
    "ranks": [{"rank": 1, "numa_node": 0, "roles": {"gradients": {"asked": "default", "pages": {"0": 1, "1": 9000}}}}]
}


def lines(path, values):
    path.write_text("".join(json.dumps(value) + "\n" for value in values))


@FUZZ
@given(st.data(), st.sampled_from([changed, hostile]))
def test_records_that_are_anything(tmp_path_factory, data, change):
    root = tmp_path_factory.mktemp("fuzz")
    lines(root / "metrics.jsonl", [data.draw(change(RECORD)) for _ in range(2)] + [RECORD])
    samples = cycle([data.draw(change({"epoch": 1, "rank": 0, "rss_bytes": 1 << 40})) for _ in range(3)])
    lines(
        root / "usage.jsonl", [{"epoch": 1, "rank": 0, "rss_bytes": 1 << 30}] * 40 + [next(samples) for _ in range(40)]
    )
    (root / "placement.json").write_text(json.dumps(data.draw(change(PLACED))))
    survives(root)


@pytest.mark.parametrize("raw", RAW)
@pytest.mark.parametrize("name", ["metrics.jsonl", "usage.jsonl", "placement.json"])
def test_records_with_numbers_and_nesting_that_json_leaves_open(tmp_path, name, raw):
    lines(tmp_path / "metrics.jsonl", [RECORD] * 3)
    plain = json.dumps(
        {"metrics.jsonl": RECORD, "placement.json": PLACED}.get(name, {"epoch": 1, "rank": 0, "rss_bytes": 7})
    )
    for key in ("rank", "ranks", "epoch_s", "batch_size", "rss_bytes", "1", "data", "skipped"):
        at = plain.rfind(f'"{key}": ')
        if at >= 0:
            begin = at + len(key) + 4
            end = next(n for n in range(begin, len(plain)) if plain[n] in ",]}")
            damaged = plain[:begin] + raw + plain[end:]
            (tmp_path / name).write_text(f"{damaged}\n{damaged}\n")
            survives(tmp_path)


@FUZZ
@given(st.binary(max_size=80))
def test_records_that_are_bytes(tmp_path_factory, content):
    root = tmp_path_factory.mktemp("fuzz")
    for name in ("metrics.jsonl", "usage.jsonl", "placement.json"):
        (root / name).write_bytes(b'{"epoch": 1}\n' + content)
    survives(root)
