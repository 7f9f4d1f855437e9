"""Scripts that call ``psframe.fit``: nothing stays of them, whatever ends first, and arrays are in memory once."""

import json
import os
import signal
import subprocess

import psutil
import pytest

from tests.helpers import launcher, live, scripts
from tests.helpers.thinned import thinned


@pytest.fixture
def mpich():
    return launcher.installed("mpich") or pytest.skip("no mpich: bash launch/test.sh installs it")


LONG = """
GIVEN["train"] = {"epochs": 1000000, "batch_size": 10}
class Tells(psframe.Callback):
    in_script = True
    def on_epoch_end(self, control, record):
        if control.epoch == 2:
            tell(path=str(control.path))
try:
    psframe.fit(**GIVEN, callbacks=[Tells()])
except KeyboardInterrupt as left:
    tell(interrupted=str(left))
except psframe.RankError as error:
    tell(lost=str(error))
"""


def started(script):
    """Return what runs on behalf of a script, its ranks of Python last; some of it may end at any moment."""
    return sorted(psutil.Process(script.pid).children(recursive=True), key=live.is_rank)


def _shared_by(process):
    """Return the files of /dev/shm that a process has mapped."""
    try:
        return [region.path for region in process.memory_maps() if region.path.startswith("/dev/shm/")]
    except psutil.Error:
        return []


def disturbed(mpi, folder, number, at_rank=False):
    """Run a long script, and send it or a rank a signal; return what it told, its process, its ranks, their memory."""
    script = subprocess.Popen(
        [str(mpi.python), str(scripts.write(folder, LONG))], cwd=folder, env=scripts.environment(mpi), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    told_first = json.loads(script.stdout.readline())  # it trains
    ranks = started(script)
    mapped = {path for rank in ranks for path in _shared_by(rank)}
    (ranks[-1] if at_rank else script).send_signal(number)
    out, _ = script.communicate(timeout=300)
    said = [told_first, *map(json.loads, filter(lambda line: line.startswith("{"), out.splitlines()))]
    return said, script, ranks, mapped


@pytest.mark.parametrize(
    ("number", "at_rank"), thinned([(signal.SIGINT, False), (signal.SIGKILL, False), (signal.SIGKILL, True)], (1,))
)
def test_nothing_stays_whatever_ends_first(mpi, tmp_path, number, at_rank):
    said, script, ranks, mapped = disturbed(mpi, tmp_path, number, at_rank)
    gone, left = psutil.wait_procs(ranks, timeout=120)
    assert not left, left
    assert gone
    if mpi.name == "mpich" or number != signal.SIGKILL:
        assert not (kept := [path for path in mapped if os.path.exists(path)]), kept
    if number == signal.SIGINT:
        assert f"the run is {said[0]['path']}; continue with checkpoint.resume=auto" in said[-1]["interrupted"]
        assert script.returncode == 0
    elif at_rank:
        assert "died" in said[-1]["lost"] or "killed" in said[-1]["lost"], said


MEMORY = """
import psutil
from pathlib import Path

class Holds(psframe.Callback):
    def __init__(self, counted):
        self.counted = counted
    def on_step_end(self, control):
        while control.epoch == 1 and not self.counted.exists():
            time.sleep(0.05)

class Counts(psframe.Callback):
    in_script = True
    def __init__(self, counted):
        self.counted = counted
    def on_epoch_end(self, control, record):
        if control.epoch > 1:
            return
        started = [p for p in psutil.Process().children(recursive=True) if p.name().startswith("python")]
        ranks = [p for p in started if "psframe.api.rank" in p.cmdline()]
        tell(n=len(ranks), pss=sum(rank.memory_full_info().pss for rank in ranks))
        self.counted.touch()

for n in (100, 40_000):
    images, labels = np.zeros((n, 1, 40, 40), np.uint8), np.arange(n) % 2
    tell(size=images.nbytes)
    GIVEN["train"] = {"epochs": 2, "batch_size": 100}
    psframe.fit(**{**GIVEN, "data": (images, labels), "test_data": (images[:50], labels[:50]), "ranks": 4},
                callbacks=[of(Path(f"counted-{n}").resolve()) for of in (Holds, Counts)])
"""


@pytest.mark.full
def test_arrays_are_in_memory_once_for_all_ranks(mpich, tmp_path):
    small, of_small, large, of_large = scripts.told(scripts.run(mpich, tmp_path, MEMORY))
    assert of_small["n"] == of_large["n"] == 4
    more, copy = of_large["pss"] - of_small["pss"], large["size"] - small["size"]
    assert more < 1.6 * copy, f"{more / copy:.2f} copies"  # a second copy in each of four ranks would be 4 more


MANY = """
import psutil, threading
me = psutil.Process()
def counted():
    return dict(files=me.num_fds(), children=len(me.children(recursive=True)), threads=threading.active_count(),
                bytes=me.memory_info().rss)
GIVEN["train"] = {"epochs": 1, "batch_size": 10}
psframe.fit(**GIVEN)
before = counted()
for number in range(N):
    psframe.fit(**GIVEN)
after = counted()
tell(before=before, after=after)
"""


@pytest.mark.full
def test_many_fits_leave_nothing_behind(mpich, tmp_path):
    n = 99 if os.environ.get("PSFRAME_TESTS") == "full" else 2
    (counts,) = scripts.told(scripts.run(mpich, tmp_path, f"N = {n}\n{MANY}", timeout_s=1800))
    before, after = counts["before"], counts["after"]
    grown = after.pop("bytes") - before.pop("bytes")
    assert before == after
    assert grown < 20_000_000, grown
