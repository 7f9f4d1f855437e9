"""Sums from quarter to quarter of the emulated machine: where the gradients lie, what crosses, and the same bits."""

import pytest

from tests.knl.jobs import together

pytestmark = pytest.mark.full  # runs of 4, 8 and 16 ranks, of an emulated minute and more each

WIDTH = 7200  # the vector is longer than the least that is summed so
N_BYTES = 4 * (37 * WIDTH + 16)  # with what aligns its tensors
FAST = "placement.parameters=hbw placement.gradients=hbw placement.exchange=hbw placement.verify=error"
OPTIONS = (
    f"sync.mode=allreduce train.epochs=1 train.batch_size=2 model.width={WIDTH} record.steps=true {FAST} "
    "collective='{{name: shared, reducers: all, domains: {}}}'"
)
#: by the number of ranks, runs and how many domains they sum by
RUNS = {8: {"at_once": "auto", "by_domain": "4"}, 4: {"few": "4"}}
MANY = {16: {"many_at_once": "1", "many": "auto"}}
STEPS = {16: 2, 8: 4, 4: 8}  # of 60 samples


def script(jobs):
    return "".join(
        together(n, {name: OPTIONS.format(domains) for name, domains in runs.items()}) for n, runs in jobs.items()
    )


@pytest.fixture
def left(knl):
    return knl("SNC-4", script(RUNS))


@pytest.mark.parametrize(("n", "name", "vectors"), [(8, "at_once", 6.0), (8, "by_domain", 3.75), (4, "few", 3.75)])
def test_bytes_that_cross_between_quarters_are_those_computed(left, n, name, vectors):
    """Of eight and four workers. What is saved would not be worth what is moved: by default they sum at once."""
    (record,), _ = left.run(name)
    crossed = record["bytes_remote"] / STEPS[n] / N_BYTES
    assert abs(crossed - vectors) < 0.05


def test_workers_write_at_home_and_the_bits_stay(left):
    (at_once,), _ = left.run("at_once")
    (by_domain,), placement = left.run("by_domain")
    assert by_domain["params_sha256"] == at_once["params_sha256"]
    for rank in placement["ranks"]:
        pages = rank["roles"]["gradients"]["pages"]
        quarter = 4 + rank["rank"] // 2
        assert pages.get(str(quarter), 0) * 4096 >= N_BYTES, (rank["rank"], pages)
        assert set(pages) <= {str(quarter)}, (rank["rank"], pages)


def test_sixteen_workers_sum_by_domain_of_their_own_accord(knl):
    found = knl("SNC-4", script(MANY))
    (at_once,), _ = found.run("many_at_once")
    (by_domain,), placement = found.run("many")
    assert by_domain["params_sha256"] == at_once["params_sha256"]
    for record, vectors in ((at_once, 12.0), (by_domain, 3.75)):
        assert abs(record["bytes_remote"] / STEPS[16] / N_BYTES - vectors) < 0.05
    for rank in placement["ranks"]:
        assert set(rank["roles"]["gradients"]["pages"]) == {str(4 + rank["rank"] // 4)}
