"""What tests that start the command share."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

from tests import launcher, report_files
from tests.report_page import report

settings.register_profile("psframe", deadline=None)  # nothing is asserted about seconds
settings.load_profile("psframe")

TINY = """\
model: tests.tiny:build
dataset: {name: synthetic, shape: [1, 6, 6], classes: 3, samples: 60}
train: {epochs: 2, batch_size: 8}
optimizer: {lr: 0.05}
"""

#: a collective of a user's own, that fails in a way
BROKEN = """\
import os, time
from psframe.collectives.buffer import Buffer

class Broken(Buffer):
    calls = 0
    def broadcast(self, params):
        self.calls += 1
        if self.calls == 4:
            self.fail()
        super().broadcast(params)

class Raises(Broken):
    def fail(self):
        if self.comm.rank == self.comm.size - 1:
            raise RuntimeError("a defect")

class Dies(Broken):
    def fail(self):
        if self.comm.rank == 1:
            os.kill(os.getpid(), 9)

class Slow(Buffer):
    def broadcast(self, params):
        print("slow", flush=True)
        time.sleep(0.1)
        super().broadcast(params)
"""


@pytest.fixture(autouse=True)
def session_directory(monkeypatch):
    """A folder for what Open MPI's launcher writes; one that is killed leaves it behind.

    It is named after the launcher's process, and the next launcher with that number, which comes round after 32,768
    processes, refuses to start: "The PMIx server's listener thread failed to start".
    """
    with tempfile.TemporaryDirectory(prefix="psframe-tests-", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("PRTE_MCA_prte_tmpdir_base", folder)
        yield Path(folder)


@pytest.fixture(params=["mpich", "openmpi"])
def mpi(request):
    return launcher.installed(request.param) or pytest.skip(f"no {request.param}: bash launch/test.sh installs it")


@pytest.fixture
def mpich():
    return launcher.installed("mpich") or pytest.skip("no mpich: bash launch/test.sh installs it")


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY + f"record: {{dir: {tmp_path / 'runs'}}}\n")
    (tmp_path / "broken.py").write_text(BROKEN)
    return str(path)


@pytest.fixture(scope="module")
def report_page(tmp_path_factory):
    """The page of everything, and what the command said."""
    root = report_files.everything(tmp_path_factory.mktemp("everything"))
    ended = report(root, "--out", root / "report.html")
    assert ended.returncode == 0, ended
    assert ended.stdout.strip() == str(root / "report.html")
    assert ended.stderr == ""
    return root / "report.html"
