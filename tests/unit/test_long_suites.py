"""The table of the long suites in docs/developer/tests.md leaves no folder out."""

import os
import subprocess
import sys

import pytest

from tests.helpers.launcher import ROOT


@pytest.mark.full  # collects all tests once more
def test_folders_of_long_suites_have_a_row_in_their_table():
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "full or soak", "-p", "no:cacheprovider"]
    env = {**os.environ, "PSFRAME_TESTS": "full"}
    ended = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    folders = {line.partition("::")[0].rpartition("/")[0] for line in ended.stdout.splitlines() if "::" in line}
    assert len(folders) > 10, ended
    page = (ROOT / "docs" / "developer" / "tests.md").read_text()
    assert [name for name in sorted(folders) if f"`{name}`" not in page] == []
