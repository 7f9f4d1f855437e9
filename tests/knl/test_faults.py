"""Too little MCDRAM, no memkind, a sandbox that denies: on an emulated machine whose memory could lie elsewhere."""

import pytest

from tests.knl.boot import Memory
from tests.knl.jobs import together

pytestmark = pytest.mark.full

SMALL = Memory(mcdram=64)

BIG = "collective=buffer train.batch_size=60 model.width=2000 "
HBW = "placement.parameters=hbw placement.activations=hbw "
PREFERRED = "train.epochs=1 placement.activations='{name: hbw, policy: preferred}' "
RUNS = {
    "full": f"{BIG} {HBW}",
    "spilled": f"{BIG} {HBW} train.epochs=1 'placement.spill=[activations]' placement.verify=error",
    "preferred": f"{BIG} {PREFERRED} placement.minimum=0",
    "mixed": f"{BIG} {PREFERRED} placement.parameters=hbw placement.gradients=hbw placement.verify=none",
}
NARROW = "collective=buffer placement.parameters=hbw train.epochs=1 placement.verify=error"
SCRIPT = f"""
{together(2, RUNS)}
python -m psframe.doctor.why $OUT/runs/preferred-2* > $OUT/why.txt
mpirun -n 2 python -m tests.helpers.denied mbind python -m psframe.train $OUT/config.yaml \\
    record.dir=$OUT/runs name=denied {NARROW} > $OUT/denied.txt 2>&1; echo $? > $OUT/denied.status
mv /usr/lib/*/libmemkind.so* /tmp
train 2 name=bare {NARROW} placement.data=hbw > $OUT/bare.txt 2>&1
python -m psframe.doctor --json > $OUT/doctor.json
"""


@pytest.fixture
def faults(knl):
    return knl("quadrant", SCRIPT, SMALL)


def test_memory_that_is_too_small_is_an_error_with_the_table(faults):
    assert faults.text("full.status") == "2\n"
    said = faults.text("full.txt")
    assert said.count("psframe:") == 1
    assert "memory must fit on the NUMA nodes it was asked for on" in said
    rows = [line.split() for line in said.splitlines() if line.split()[:2] == ["1", "hbw"]]
    (row,) = rows
    assert row[-2:] == ["too", "small"]
    wanted, free = (int(cell.replace(",", "")) for cell in row[-4:-2])
    assert wanted > free > 10 << 20
    assert not list((faults.folder / "runs").glob("full-*"))


def test_role_that_does_not_fit_is_spilled_and_the_rest_stays(faults):
    metrics, placed = faults.run("spilled")
    (record,) = metrics
    assert record["placement"]["activations"] == "hbw -> ddr"
    assert list(record["pages"]["parameters"]) == ["1"]
    assert "1" not in record["pages"]["activations"]
    assert record["placed"] == {"parameters": 1.0, "activations": 1.0}
    assert "was spilled to ddr" in placed["ranks"][0]["notes"][0]
    assert "spilled to ddr" in faults.text("spilled.txt")


def test_preferred_memory_overflows_and_says_by_how_much(faults):
    (record,) = faults.run("preferred")[0]
    assert set(record["pages"]["activations"]) >= {"0", "1"}
    assert 0 < record["placed"]["activations"] < 1


def test_pages_that_are_not_where_they_were_asked_to_be_are_a_cause(faults):
    """The first one, where nothing else takes the emulated machine's time."""
    causes = [line for line in faults.text("why.txt").splitlines() if line.startswith(("1. ", "2. "))]
    assert any("of the pages of activations are where the config asks for them" in cause for cause in causes), causes


def test_mcdram_goes_to_what_must_lie_there_before_what_should(faults):
    (record,) = faults.run("mixed")[0]
    assert record["placed"]["parameters"] == record["placed"]["gradients"] == 1.0
    assert record["placed"]["activations"] < 1


def test_pages_are_found_elsewhere_where_mbind_is_denied(faults):
    assert faults.text("denied.status") == "2\n"
    said = faults.text("denied.txt")
    assert said.count("must have 99% of its pages on NUMA node(s) 1, got 0.0%") == 1
    assert "on node 0" in said


def test_memory_is_mapped_and_bound_without_memkind(faults):
    metrics, placed = faults.run("bare")
    assert metrics[-1]["placed"] == {"parameters": 1.0, "data": 1.0}
    assert list(metrics[-1]["pages"]["data"]) == ["1"]
    assert all("memkind is not installed" in rank["notes"][0] for rank in placed["ranks"])
    assert faults.json("doctor.json")["memkind"]["version"] is None
