"""Size of the files of incidents that are read: what is larger is refused before it is held in memory."""

import json

import pytest

from psframe.doctor.why.evidence import Evidence, head
from psframe.errors import UserError
from psframe.record import incident
from tests.helpers import incidents


def test_a_file_of_the_largest_size_is_read_and_no_larger_one(tmp_path, monkeypatch):
    path, text = tmp_path / "incident-1.json", json.dumps({"format": 1, **incidents.node([incidents.at_gate(0)])})
    monkeypatch.setattr(incident, "MOST_BYTES", len(text))
    path.write_text(text)
    assert [rank.number for rank in Evidence([path]).ranks] == [0]
    path.write_text(f"{text} ")
    with pytest.raises(UserError, match=f"more than {len(text):,} bytes"):
        Evidence([path])


def test_a_hole_larger_than_memory_is_refused(tmp_path):
    path = tmp_path / "incident-1.json"
    with open(path, "wb") as file:
        file.truncate(1 << 42)
    with pytest.raises(UserError, match="more than 67,108,864 bytes"):
        Evidence([path])
    assert head(path).time == path.stat().st_mtime
