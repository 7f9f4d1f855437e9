"""A whole node is lost, with everything that could tell of it: the ranks of the other one notice, and go on."""

import pytest

from tests import hosts
from tests.helpers import live, runs
from tests.helpers.live import records_of

#: heartbeats by a thread; a rank that does not come to run for so long is taken for dead
HEARTBEATS = {"detector": "true", "detector_thread": "true", "detector_period": "2", "detector_timeout": "10"}


@pytest.mark.full
@pytest.mark.parametrize("mode", ["sync_ps", "allreduce"])
def test_survivors_go_on_and_the_launcher_ends(ulfm, tmp_path, mode):
    if hosts.missing():
        pytest.skip(hosts.missing())
    path = runs.write(tmp_path / "loss.yaml", 40, "continue")
    beats = [word for key, value in HEARTBEATS.items() for word in ("--mca", f"mpi_ft_{key}", value)]
    with hosts.Hosts(2) as two:
        mpi = two.mpi(ulfm, 2, *beats, "--map-by", "node")
        words = ["-m", "psframe.train", path, "--quiet", f"sync.mode={mode}", "fault.late_s=0"]
        process = live.launch(two.on_first(mpi.command(4, words)), **two.environment)
        live.trains(process, path)
        two.lose(1)
        told = live.says(process, "psframe:")
        assert "ranks 2, 3 have died in epoch" in told
        err = live.ends(process, path)
    assert "mpirun waits for the node that is lost" in err
    records = records_of(tmp_path)
    assert [record["epoch"] for record in records] == list(range(1, 41))
    assert [loss["ranks"] for record in records for loss in record["lost"]] == [[2, 3]]
    assert records[-1]["n_ranks"] == 2
