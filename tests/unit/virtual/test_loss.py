"""A rank dies at any point of its training, and the others go on: whole runs, in any order of their ranks' steps."""

import gc
import json
from random import Random

import pytest

from psframe.cluster.joining import join
from psframe.record import metrics
from psframe.virtual.orders import AtRandom
from psframe.virtual.training import trained
from tests.helpers.suite import IS_FULL, examples
from tests.helpers.thinned import thinned
from tests.helpers.virtual import on_ranks
from tests.ranks.training import TINY

N = 5
#: points of a rank before it trains on, among which it has formed the smaller job
FORMS = range(100 if IS_FULL else 90, 0 if IS_FULL else 75, -1)
SAME_BITS = "train.reproducible=any_workers ; train.global_batch=24"
#: modes, nodes, and the ranks of which any may die
WAYS = (
    *((f"sync=allreduce ; {SAME_BITS}", n_nodes, range(N)) for n_nodes in (1, 2)),
    *((f"sync=sync_ps ; {SAME_BITS}", n_nodes, range(N)) for n_nodes in (1, 2)),
    ("sync={mode: sync_ps, server: colocated}", 2, range(N)),
    ("sync={mode: allreduce} ; collective=buffer", 2, range(N)),
    ("sync={mode: local_sgd, every: 3}", 1, range(N)),
    ("sync={mode: sync_ps, backup_workers: 1}", 1, range(1, N)),
    ("sync=async_ps", 1, range(1, N)),
    ("sync={mode: async_ps, staleness: 2}", 1, range(1, N)),
    ("sync={mode: easgd, period: 4}", 1, range(1, N)),
    ("sync=hogwild", 1, range(1, N)),
)


@pytest.fixture(scope="module", autouse=True)
def few_objects():
    """Let each rank that goes on collect its own garbage only, and not look through what other tests have made."""
    gc.collect()
    gc.freeze()


def ends(folder, keys, n_nodes, seed, kills=None, again=None):
    """Train; return the records and the steps, the points at which each rank has begun, and those at its end.

    ``again`` gets the points at which each rank has begun for the last time, if that is not the first.
    """
    begins, again = {}, {} if again is None else again

    def begin(run):
        rank = run.cluster.comm.ranks.current
        (again if rank.number in begins else begins)[rank.number] = rank.n_points

    def body(world):
        asked = [f"record.dir={folder / 'runs'}", "fault.on_worker_loss=continue", *keys.split(" ; ")]
        return trained(join(world), str(folder / "config.yaml"), asked, begin)

    (folder / "config.yaml").write_text(TINY)
    _, ranks = on_ranks(N, body, AtRandom(seed), n_nodes, kills)
    (run,) = (folder / "runs").iterdir()
    steps = [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]
    return (metrics.read(run), steps), begins, [rank.n_points for rank in ranks.ranks]


def went_on_to_the_same_bits(ended, usual):
    (records, steps), (usual_records, usual_steps) = ended, usual
    assert [record["epoch"] for record in records] == [1, 2]
    assert records[-1]["params_sha256"] == usual_records[-1]["params_sha256"]
    assert steps[-1]["step"] == usual_steps[-1]["step"]
    places = [(step["epoch"], step["step"]) for step in steps]
    assert places == sorted(set(places))


@pytest.mark.parametrize("seed", range(examples(6)))
@pytest.mark.parametrize(("keys", "n_nodes", "mortal"), WAYS, ids=[f"{keys} on {n}" for keys, n, _ in WAYS])
def test_others_go_on_whenever_a_rank_dies(tmp_path, keys, n_nodes, mortal, seed):
    draw = Random(f"{keys} {n_nodes} {seed}")
    (tmp_path / "unharmed").mkdir()
    usual, begins, points = ends(tmp_path / "unharmed", keys, n_nodes, seed)
    victim = draw.choice(mortal)
    at = draw.randrange(begins[victim] + 1, points[victim] + 1)
    print(f"rank {victim} dies at its point {at}")
    (records, steps), _, _ = ends(tmp_path, keys, n_nodes, seed, {victim: at})
    assert [record["epoch"] for record in records] == [1, 2]
    lost = [loss["ranks"] for record in records for loss in record["lost"]]
    assert lost in ([], [[victim]])  # in none, if it has died after the last epoch
    for record in records:
        if not record["lost"] and "backup" not in keys:
            assert sum(step["n_samples"] for step in steps if step["epoch"] == record["epoch"]) == 203
    if SAME_BITS in keys:
        went_on_to_the_same_bits((records, steps), usual)


@pytest.mark.parametrize("victim", thinned([*range(N)], (0,)))
def test_all_that_are_left_hear_of_the_end(tmp_path, victim):
    """Wherever a rank dies in the exchanges that end a job: nobody goes on alone, or is taken for dead."""
    keys, n_nodes, _ = WAYS[1]
    (tmp_path / "unharmed").mkdir()
    usual, _, points = ends(tmp_path / "unharmed", keys, n_nodes, 0)
    for at in range(points[victim] - 12, points[victim] + 1):
        (tmp_path / str(at)).mkdir()
        ended, _, _ = ends(tmp_path / str(at), keys, n_nodes, 0, {victim: at})
        went_on_to_the_same_bits(ended, usual)
        lost = [loss["ranks"] for record in ended[0] for loss in record["lost"]]
        assert lost in ([], [[victim]]), at


@pytest.mark.parametrize("seed", range(examples(12)))
def test_others_die_while_the_rest_goes_on(tmp_path, seed):
    draw = Random(seed)
    keys, n_nodes, _ = WAYS[seed % 4]
    (tmp_path / "unharmed").mkdir()
    usual, begins, points = ends(tmp_path / "unharmed", keys, n_nodes, seed)
    victims = draw.sample(range(N), draw.randrange(2, N))
    kills = {victim: draw.randrange(begins[victim] + 1, points[victim] + 1) for victim in victims}
    print(f"ranks die at their points: {kills}")
    ended, _, _ = ends(tmp_path, keys, n_nodes, seed, kills)
    went_on_to_the_same_bits(ended, usual)


@pytest.mark.parametrize("victim", thinned([0, 2, 3, 4], (3,)))
def test_another_one_dies_while_the_rest_forms_a_smaller_job(tmp_path, victim):
    """Some have the smaller job then, and others do not: they still meet."""
    keys, n_nodes, _ = WAYS[1]
    (tmp_path / "unharmed").mkdir()
    (tmp_path / "first").mkdir()
    usual, begins, points = ends(tmp_path / "unharmed", keys, n_nodes, 0)
    first, again = {1: (begins[1] + points[1]) // 2}, {}
    ends(tmp_path / "first", keys, n_nodes, 0, first, again)
    for at in (again[victim] - before for before in FORMS):
        (tmp_path / str(at)).mkdir()
        ended, _, _ = ends(tmp_path / str(at), keys, n_nodes, 0, {**first, victim: at})
        went_on_to_the_same_bits(ended, usual)


def test_slow_rank_stays_the_same_one(tmp_path):
    """It is told of by its number at the start of the job."""
    (tmp_path / "config.yaml").write_text(TINY)
    slow = {}

    def begin(run):
        number = run.cluster.comm.ranks.current.number
        slow.setdefault(number, []).append(run.guard.slow.applies_updates)

    def body(world):
        keys = ["fault={on_worker_loss: continue, slow_rank: 3, slow_steps: 1}", "sync=allreduce"]
        return trained(join(world), str(tmp_path / "config.yaml"), [*keys, f"record.dir={tmp_path / 'runs'}"], begin)

    on_ranks(N, body, AtRandom(0), 1, {1: 160})
    assert slow == {0: [False] * 2, 1: [False], 2: [False] * 2, 3: [True] * 2, 4: [False] * 2}
