"""The page of psframe.report shows how much of a step each worker took."""

import json
import re

import pytest

from psframe.report import make
from tests.helpers import report_files
from tests.helpers.report_page import sound


def test_shares_of_a_step_have_a_line_a_worker(tmp_path):
    folder = report_files.run(tmp_path / "a", shares=[16, 16, 16])
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    records = [
        json.loads(line) | {"shares": [20 - 2 * epoch, 14 + epoch, 14 + epoch]} for epoch, line in enumerate(lines)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    page, notices = make.report([str(tmp_path)])
    assert not notices
    sound(page)
    (figure,) = re.findall(r'<figure id="figure-shares".*?</figure>', page, re.DOTALL)
    for worker in range(3):
        assert f"worker {worker}" in figure
    assert "worker 3" not in figure


@pytest.mark.parametrize(
    "shares", [None, 7, "x", [], [None, "<b>"], [-1, float("nan")], [[1]] * 3, {"0": 1}, list(range(4000))], ids=str
)
def test_shares_of_any_kind_are_shown_or_left_out(tmp_path, shares):
    report_files.run(tmp_path / "a", shares=shares)
    page, _ = make.report([str(tmp_path)])
    sound(page)
    assert ('id="figure-shares"' in page) == (shares is not None and len(str(shares)) > 1000)
