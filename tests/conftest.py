"""What tests that start the command share."""

import gc
import signal
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from tests.helpers import failures, launcher, report_files, runs
from tests.helpers.configs import BROKEN, TINY
from tests.helpers.pool import Pool
from tests.helpers.report_page import report
from tests.ranks.harness import LARGEST

settings.register_profile("psframe", deadline=None)  # nothing is asserted about seconds
settings.load_profile("psframe")

failures.watch()
# ignored in what a shell started in the background, and then in all that tests start
signal.signal(signal.SIGINT, signal.default_int_handler)

#: of jobs over ranks, those beside the commands: they wait for each other, and for deadlines, or are one long job
BESIDE = (
    *("tests/hosts/", "tests/ranks/"),
    *(f"tests/commands/test_{name}.py" for name in ("bad_input", "limits", "mpi_start")),
)
#: commands whose tests start few ranks, or none; and those of a few long runs
FEW = (
    *("accuracy", "bench_kernels", "bench_peers", "check", "compare", "doctor", "examples", "extend", "fit"),
    *("front_door", "notebooks", "packaging", "predict", "report", "runs", "sklearn", "tune"),
)
#: folders and files whose tests are like that: their files go to whichever worker is free
LIGHT = (
    *("tests/unit/", "tests/fuzz/", "tests/knl/", "tests/models/test_me", "tests/stress/", "tests/torch/"),
    "tests/ranks/test_virtual_ranks.py",
    *(f"tests/commands/test_{name}" for name in FEW),
)


class JobsApart(LoadScopeScheduling):
    """Let jobs over ranks follow one another on two workers, and what is light on whichever is free.

    More jobs at a time, of more ranks together than cores, take longer than one after the other: MPI spins.
    """

    def _split_scope(self, nodeid):
        file, _, test = nodeid.partition("::")
        light = f"{file} {_case_file(test)}" if file.endswith("test_virtual_ranks.py") else file
        return ("commands", "beside", light)[_order(nodeid)]

    def remove_node(self, node):
        """Give what is left of a worker that has ended to others, but for the test that ended it: it would end them."""
        for unit in self.assigned_work[node].values():
            if ended := next((test for test, is_done in unit.items() if not is_done), None):
                unit[ended] = True
                super().remove_node(node)
                return ended
        return super().remove_node(node)


def _case_file(test):
    """Return what follows the number of ranks in ``test_over_virtual_ranks[4-guard.checks_change_no_bit]``: guard."""
    return test.partition("-")[2].partition(".")[0]


def _order(nodeid):
    """Return when a test begins: commands over ranks, the jobs beside them, what is light."""
    return 2 if nodeid.startswith(LIGHT) else int(nodeid.startswith(BESIDE))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return JobsApart(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Begin with the jobs; leave Open MPI to those tests that MPI matters to, and large ones to a time alone."""
    items.sort(key=lambda item: _order(item.nodeid))
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if parameters.get("mpi") == "openmpi" and not item.get_closest_marker("each_mpi"):
            item.add_marker(pytest.mark.full)
        has_ranks = "mpi" in parameters or item.nodeid.startswith("tests/torch/")
        if has_ranks and isinstance(n := parameters.get("n"), int) and n > LARGEST:
            item.add_marker(pytest.mark.full)
            item.add_marker(pytest.mark.wide)


def pytest_collection_finish(session):
    """Keep what tests import from being looked through by each collection of garbage."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Say with a failure what one needs to look into it."""
    outcome = yield
    report = outcome.get_result()
    if report.failed:
        failures.explain(item, report)


@pytest.fixture(autouse=True)
def own_story():
    """Forget what earlier tests started."""
    failures.forget()


@pytest.fixture(autouse=True)
def own_signals():
    """Give back the handlers of signals: one that a test leaves ignored is ignored in all that later tests start."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


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
def ulfm():
    """An MPI that outlives a rank."""
    return runs.ulfm()


@pytest.fixture(scope="session")
def pool(tmp_path_factory):
    """A function of a number, and an MPI, MPICH if none is given: so many ranks that wait for commands, for all tests.

    For commands that need neither a launcher nor processes of their own.
    """
    pools: dict[tuple[str, int], Pool] = {}

    def of(n, mpi=None):
        mpi = mpi or launcher.installed("mpich") or pytest.skip("no mpich: bash launch/test.sh installs it")
        if (mpi.name, n) not in pools:
            pools[mpi.name, n] = Pool(mpi, n, tmp_path_factory.mktemp(f"pool-{mpi.name}-{n}"))
        return pools[mpi.name, n]

    yield of
    for made in pools.values():
        made.close()


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
