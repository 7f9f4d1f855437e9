"""Whatever runs' and benches' files say: a page, or one sentence. Bytes of any kind: tests/fuzz/test_targets.py."""

import csv
import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from psframe.errors import UserError
from psframe.report.__main__ import report
from tests.helpers import report_files
from tests.helpers.report_page import sound
from tests.helpers.suite import examples

FUZZ = settings(
    max_examples=examples(40),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
EVIL = st.sampled_from(["<script>", "</title><script>", '"><script>', "\ud800", "\0", "é" * 500, "nan", "-1", "1e999"])
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.floats(),
    st.integers(),
    st.sampled_from([0, -1, -2.5, 10**400, 1e308, 5e-324, 1e17, 1e-14]),
    st.text(max_size=9),
    EVIL,
)
VALUES = st.recursive(
    LEAVES,
    lambda of: st.lists(of, max_size=3) | st.dictionaries(st.text(max_size=5) | EVIL, of, max_size=3),
    max_leaves=6,
)


@st.composite
def changed(draw, plain):
    """A JSON value in which some parts are others, or gone."""
    plain = json.loads(json.dumps(plain))
    for _ in range(draw(st.integers(1, 6))):
        at, path = plain, []
        while isinstance(at, dict | list) and at and (not path or draw(st.integers(0, 3))):
            keys = sorted(at) if isinstance(at, dict) else range(len(at))
            path.append((at, draw(st.sampled_from(list(keys)))))
            at = at[path[-1][1]]
        if path:
            of, key = path[-1]
            if isinstance(of, dict) and draw(st.integers(0, 4)) == 0:
                del of[key]
            else:
                of[key] = draw(VALUES)
    return plain


def survives(*paths):
    try:
        page, _ = report([str(path) for path in paths])
    except UserError:
        return
    page.encode()
    sound(page)


RECORDS = [{**report_files.RECORD, "epoch": n} for n in (1, 2, 3)]


@FUZZ
@given(data=st.data())
def test_runs(tmp_path_factory, data):
    root = tmp_path_factory.mktemp("fuzz")
    for name in ("a", "b"):
        run = report_files.run(root / name, name)
        report_files.write_lines(run / "metrics.jsonl", data.draw(changed(RECORDS)))
        report_files.write_lines(run / "usage.jsonl", data.draw(changed(report_files.usage(2)[:12])))
    survives(root)


@FUZZ
@given(content=st.text(max_size=60) | VALUES.map(lambda value: json.dumps({"a": value, "name": value})))
def test_configs(tmp_path_factory, content):
    run = report_files.run(tmp_path_factory.mktemp("fuzz") / "run")
    (run / "config.yaml").write_text(content, errors="replace")
    survives(run)


@FUZZ
@given(
    data=st.data(),
    make=st.sampled_from(
        [
            report_files.threads,
            report_files.forward,
            report_files.peers,
            report_files.predict,
            report_files.torch,
            report_files.torch_record,
        ]
    ),
)
def test_benches(tmp_path_factory, data, make):
    root = tmp_path_factory.mktemp("fuzz")
    (root / "bench.json").write_text(json.dumps(data.draw(changed(make()))))
    survives(root / "bench.json")


@FUZZ
@given(st.lists(st.tuples(st.integers(0, 13), LEAVES), min_size=1, max_size=5), st.integers(1, 20))
def test_tables(tmp_path_factory, changes, n_rows):
    folder = report_files.collectives(tmp_path_factory.mktemp("fuzz") / "c", environments=((0, 0), (4, 0)))
    with open(folder / "collectives.csv", newline="") as file:
        rows = list(csv.reader(file))[: n_rows + 1]
    for number, (column, value) in enumerate(changes):
        rows[number % len(rows)][column] = str(value)
    (folder / "collectives.csv").write_text("\n".join(map(",".join, rows)), errors="replace")
    survives(folder)
