"""What psframe.predict reckons of gradients that are encoded."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psframe.collectives import compression
from psframe.memory.allocator import Allocator
from psframe.predict import codec_cost, exchange, machine
from psframe.predict.job import Codec
from psframe.predict.paces import predicted
from psframe.record.traffic import Traffic
from tests.helpers.predictions import job, way, work

ONEBIT = Codec("onebit", 1 / 32 + 1e-3, 1e-3, 2e-4)


@pytest.mark.parametrize(
    ("changes", "codec"),
    [
        ({"collective": "shared"}, "none"),  # memory that all share carries them as they are
        ({"collective": "hierarchical", "nodes": 2}, "onebit"),
        ({"collective": "buffer"}, "onebit"),
        ({"collective": "buffer", "mode": "sync_ps", "server": "colocated", "n_servers": 2}, "none"),
        ({"collective": "object"}, "none"),
        ({"collective": "buffer", "ranks": 1}, "none"),
    ],
)
def test_codec_counts_where_it_is_used(changes, codec):
    asked = way(compression="onebit", **changes)
    assert asked.codec == codec
    assert asked.name.endswith(", onebit") == (codec == "onebit")
    plain, coded = (predicted(job(work=work(codec=of)), asked).epoch_s for of in (None, ONEBIT))
    assert (plain == coded) == (codec == "none")


def test_leaders_encode_their_sums_again_unless_messages_go_to_all():
    codec = Codec("topk", 1 / 2, encode_s=4.0, add_s=1.0)
    assert not codec.sent_once(4)
    asked = way(collective="hierarchical", nodes=4, compression="topk")
    assert codec_cost.leaders_s(asked, codec) == 4.0 + 4.0 / 4 + 2 * 1.0, "all gradients, a share of the sums, two adds"


@pytest.mark.parametrize("collective", ["hierarchical", "buffer"])
@pytest.mark.parametrize("mode", ["allreduce", "sync_ps"])
def test_codec_pays_on_a_slow_link(collective, mode):
    asked = way(collective=collective, mode=mode, server="colocated" if mode == "sync_ps" else None, nodes=4, ranks=16)
    seconds = {
        (link, name): predicted(job(work=work(codec=ONEBIT)), replace(asked, link=link, compression=name)).epoch_s
        for link in ("1", "100")
        for name in ("none", "onebit")
    }
    assert seconds["1", "onebit"] < seconds["1", "none"]
    gain = {link: seconds[link, "none"] - seconds[link, "onebit"] for link in ("1", "100")}
    assert gain["100"] < gain["1"]


@given(st.integers(2, 40), st.sampled_from(["fp16", "onebit", "topk"]), st.integers(64, 10**6))
def test_encoded_gradients_go_by_the_collectives_rule(nodes, name, size):
    carrier = SimpleNamespace(comm=SimpleNamespace(size=nodes, rank=0))  # which is asked for no more than that
    made = compression.sum_between_nodes(carrier, size, name, Allocator(), Traffic())
    share = compression.codec_maker(name, Allocator())(size).n_bytes / (4 * size)
    once = isinstance(made, compression.GatheredSum)
    if abs((nodes - 1) * share - 1 / 8) > 1e-4:  # there the rule is in whole bytes
        assert Codec(name, share, 0, 0).sent_once(nodes) == once


def test_bytes_of_a_codec_on_the_link():
    link = machine.link("1")
    rate = link.gbit.value * 1e9 / 8
    small, nothing = (Codec("small", n_bytes / 4e6, 0, 0) for n_bytes in (1e5, 0))
    asked = way(collective="hierarchical", nodes=2, ranks=4)
    seconds = exchange.between_s(asked, 4e6, link, small)
    assert seconds == pytest.approx(1e5 / rate + 2e-6 * link.latency_us.value)
    several = replace(asked, collective="buffer", mode="sync_ps", server="colocated")
    arriving = exchange.between_s(several, 4e6, link, small) - exchange.between_s(several, 4e6, link, nothing)
    assert arriving == pytest.approx(2 * 1e5 / rate)  # of the other host's two
