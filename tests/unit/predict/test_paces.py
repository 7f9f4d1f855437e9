"""Epochs of modes that do not exchange in every step, of blocks, and of networks that are cut."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psframe.collectives.order import owned
from psframe.errors import UserError
from psframe.predict.job import ExchangePlan
from psframe.predict.paces import PACES, PASSES, predicted
from psframe.sync import TABLE
from tests.helpers.predictions import job, way, work

OWN = sorted(PASSES)
WIDE = 50_000_000  # parameters whose updates take longer than the layers


def at(mode, **changes):
    return way(mode=mode, server="dedicated" if "async_ps" in mode else None, **changes)


def test_modes_all_have_a_pace_or_exchange_in_every_step():
    paces = {mode: at(mode).pace for mode in TABLE}
    assert {mode for mode, pace in paces.items() if pace == "own"} == {*PASSES} & {*TABLE}
    assert all(at(mode).pace == "own" for mode in PASSES)
    assert {*paces.values()} <= PACES.keys()


@pytest.mark.parametrize("mode", OWN)
def test_workers_by_themselves_share_the_samples(mode):
    """Of a small network, whose vectors take no time to speak of: twice the workers, half of the epoch."""
    of = job(work=work(n_params=100, n_train=6400))
    few, many = (predicted(of, at(mode, ranks=n + ("async_ps" in mode))) for n in (4, 8))
    assert few.steps == many.steps == 200
    assert few.epoch_s == pytest.approx(2 * many.epoch_s, rel=0.01)
    assert few.wait_s == 0


def test_server_bounds_workers_by_themselves():
    """However many there are: it updates all parameters for each gradient."""
    of = job(work=work(n_params=WIDE))
    some, more = (predicted(of, at("async_ps", ranks=n)).epoch_s for n in (30, 60))
    assert some == pytest.approx(more, rel=0.01)
    assert predicted(of, at("async_ps", ranks=60, every=4)).epoch_s < 0.5 * more
    assert predicted(of, at("async_ps", ranks=60, pull_every=4)).epoch_s == pytest.approx(more, rel=0.1)
    assert predicted(of, at("hogwild", ranks=60)).epoch_s < more
    for slower in ("bounded async_ps", "compensated async_ps"):
        assert predicted(of, at(slower, ranks=3)).epoch_s > predicted(of, at("async_ps", ranks=3)).epoch_s


def test_rank_alone_trains_as_in_any_mode():
    seconds = {predicted(job(work=work(n_params=WIDE)), at(mode, ranks=1)).epoch_s for mode in ("allreduce", *OWN)}
    assert len(seconds) == 1


def test_workers_by_themselves_share_cores():
    """More ranks than cores compute no faster."""
    all_cores, twice = (predicted(job(), at("hogwild", ranks=n)).epoch_s for n in (68, 136))
    assert twice >= 0.9 * all_cores
    assert predicted(job(), at("hogwild", ranks=68, threads=4)).epoch_s >= 0.9 * all_cores


def test_store_of_another_node_is_reached_by_the_link():
    of = job(work=work(n_params=WIDE))
    near, far, faster = (
        predicted(of, at("easgd", ranks=4, nodes=nodes, link=link)) for nodes, link in ((1, "1"), (2, "1"), (2, "10"))
    )
    assert near.network_s == 0
    assert far.epoch_s == pytest.approx(10 * faster.epoch_s)  # it bounds both
    leaders = predicted(of, at("dogwild", ranks=4, nodes=2, link="1"))
    assert leaders.epoch_s < far.epoch_s
    assert "training refuses that" in predicted(of, at("hogwild", ranks=4, nodes=2)).notes[0]


@pytest.mark.parametrize("mode", ["local_sgd", "block_momentum", "synchronous easgd"])
def test_periods_exchange_less(mode):
    of = job(work=work(n_params=WIDE, deviation=0.1), here=True)
    each, eighth = (predicted(of, at(mode, every=n)) for n in (1, 8))
    update_s = of.node(way()).update_s(4 * WIDE, 4) * each.steps
    n_averages = [-(-each.steps // n) + 1 for n in (1, 8)]  # one for the optimizer's state
    assert eighth.exchange_s - update_s == pytest.approx((each.exchange_s - update_s) * n_averages[1] / n_averages[0])
    assert eighth.compute_s == each.compute_s
    assert each.wait_s == pytest.approx(8**0.5 * eighth.wait_s)


def in_blocks(blocks, samples, **changes):
    return way(reproducible="any_workers", blocks=blocks, samples=samples, **changes)


@given(st.integers(1, 8), st.sampled_from([8, 16, 64]), st.integers(64, 2048))
def test_blocks_are_computed_one_after_the_other(n_workers, blocks, samples):
    """The busiest worker's, as the order of sums has them."""
    of = job(work=work(n_params=0, n_train=6400))
    found = predicted(of, in_blocks(blocks, samples, ranks=n_workers))
    owners = (owned(n_workers, worker, blocks) for worker in range(n_workers))
    busiest = max(blocks.stop - blocks.start for blocks in owners)
    of_block = of.compute_s(way(ranks=n_workers), samples / blocks)
    assert found.compute_s == pytest.approx(6400 / samples * busiest * of_block)
    assert found.steps == -(-6400 // samples)


def test_workers_without_a_block_are_noted():
    (note,) = predicted(job(), in_blocks(8, 256, ranks=16)).notes
    assert "16 workers for 8 blocks" in note


def cut(**changes):
    return way(**{"ranks": 2, "stages": 2, **changes})


def test_stages_take_turns_with_micro_batches():
    """(M + P - 1) / M of the slowest stage, where nothing is the same for any number of samples."""
    layer = replace(work().layers[0], seconds=dict.fromkeys(("forward", "backward"), (4e-3, 1e-3)))
    of = job(work=work(n_params=0, layers=[layer, layer], step_s=(16e-3, 4e-3), n_train=6400))
    whole = predicted(of, way(ranks=1)).epoch_s
    for m in (1, 2, 8):
        assert predicted(of, cut(micro_batches=m)).epoch_s == pytest.approx((m + 1) / m * whole / 2, rel=0.01)


def test_shards_share_a_layer_and_gather_it():
    layers = [replace(layer, name="Dense", outputs=1000, params=1000) for layer in work().layers]
    of = job(work=work(layers=layers))
    found = predicted(of, way(ranks=2, shards=2))
    assert found.way.n_workers == 1
    assert 0.3 * predicted(of, way(ranks=1)).epoch_s < found.epoch_s < predicted(of, way(ranks=1)).epoch_s


def test_replicas_of_a_stage_exchange_its_part():
    layers = [replace(layer, params=WIDE // 2) for layer in work().layers]
    of = job(work=work(layers=layers, n_params=WIDE))
    part, whole = predicted(of, cut(ranks=8)), predicted(of, way(ranks=4))
    assert part.way.n_workers == whole.way.n_workers == 4
    assert part.exchange_s < whole.exchange_s


def test_micro_batches_without_a_cut_are_passes_of_a_step():
    found = predicted(job(), way(ranks=3, mode="sync_ps", server="dedicated", micro_batches=4))
    assert found.way.n_workers == 2
    steps, left = divmod(6000, 64)
    of = (4 * job().compute_s(found.way, n / 4) for n in (32, left / 2))
    full, last = of
    assert found.compute_s == pytest.approx(steps * full + last)


def test_ways_that_cannot_be_are_refused():
    with pytest.raises(UserError, match="must divide the number of ranks"):
        cut(ranks=3)
    with pytest.raises(UserError, match="a layer for every stage"):
        predicted(job(), cut(ranks=4, stages=4))
    with pytest.raises(UserError, match="on one node"):
        predicted(job(), cut(nodes=2))


def test_ways_have_names_of_their_own():
    ways = (
        at("async_ps"), at("async_ps", every=4), at("local_sgd", every=8), way(), cut(), cut(micro_batches=4),
        way(shards=2), in_blocks(8, 256),
    )  # fmt: skip
    assert len({w.name for w in ways}) == len(ways)
    assert len({job().named(w) for w in ways}) == len(ways)
    assert isinstance(ways[0], ExchangePlan)
