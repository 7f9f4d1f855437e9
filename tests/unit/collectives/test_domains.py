"""Which bytes cross between the domains of a node's memory, and who adds what in a chain of sums."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psframe.collectives.domains import LEAST_BYTES, Chain, Near, groups, need_plain, runs_of
from psframe.errors import UserError

maps = st.lists(st.integers(0, 3), min_size=1, max_size=12)


@given(maps, st.integers(0, 40_000), st.sampled_from([4, 64, 4096]))
def test_every_run_adds_every_piece_once_and_pieces_tile_the_vector(workers, size, page_bytes):
    chain = Chain(size, page_bytes, runs_of(workers))
    ends = [*(piece.stop for piece in chain.pieces), *[size] * (not chain.pieces)]
    assert [0, *ends] == [*(piece.start for piece in chain.pieces), size]
    assert all(piece.start * 4 % page_bytes == 0 for piece in chain.pieces)
    for run, members in enumerate(chain.runs):
        assert len({workers[worker] for worker in range(members.start, members.stop)}) == 1
        added = [chain.of(run, worker) for worker in range(members.start, members.stop)]
        assert sorted(piece for of_worker in added for piece in of_worker) == list(range(len(chain.pieces)))
        for worker, pieces in zip(range(members.start, members.stop), added, strict=True):
            turns = [chain.turn(run, piece) for piece in pieces]
            assert [(t.worker, t.number, t.of) for t in turns] == [
                (worker, n + 1, len(pieces)) for n in range(len(pieces))
            ]
    assert [run.start for run in chain.runs] == [0, *(run.stop for run in chain.runs[:-1])]


@given(maps, st.integers(1, 300), st.data())
def test_segment_waits_for_the_last_run_s_pieces_of_it_and_no_others(workers, size, data):
    chain = Chain(size, 64, runs_of(workers))
    start = data.draw(st.integers(0, size))
    segment = slice(start, data.draw(st.integers(start, size)))
    awaited, last = chain.over(segment), len(chain.runs) - 1
    needed = {
        n for n, piece in enumerate(chain.pieces) if {*range(*piece.indices(size))} & {*range(*segment.indices(size))}
    }
    assert {(turn.worker, turn.number) for turn in awaited} == {
        (chain.turn(last, n).worker, chain.turn(last, n).number) for n in needed
    }


@given(maps.filter(lambda found: len(set(found)) > 1), st.integers(1, 4), st.data())
def test_bytes_that_cross_are_those_of_every_read_and_write(nodes, n_reducers, data):
    """Of a model of every float: who writes or reads it, and in whose memory."""
    size = data.draw(st.integers(n_reducers, 60))
    reducers = tuple(sorted(data.draw(st.permutations(range(len(nodes))))[:n_reducers]))
    owner = np.sort(data.draw(st.lists(st.integers(0, len(reducers) - 1), min_size=size, max_size=size)))
    shares = {rank: 4 * int((owner == number).sum()) for number, rank in enumerate(reducers)}
    n_servers = data.draw(st.integers(0, len(nodes) - 1))
    near = Near(tuple(nodes), n_servers)
    of_owner = [nodes[reducers[reducer]] for reducer in owner]
    written = sum(4 for worker in nodes[n_servers:] for home in of_owner if home != worker)
    runs = [nodes[n_servers + run.start] for run in near.runs]
    read = 4 * size * (len(runs) - 1) + sum(4 for home in of_owner if home != runs[-1])
    assert (near.at_once(shares), near.by_domain(shares)) == (written, read)


@pytest.mark.parametrize(
    ("n_workers", "n_nodes", "pays"),
    [(2, 2, False), (4, 2, False), (4, 4, False), (8, 4, False), (16, 2, True), (16, 4, True), (64, 4, True)],
)
def test_chain_pays_where_as_many_bytes_less_cross_as_are_moved_more(n_workers, n_nodes, pays):
    """(W - W / D) S cross in place of (D - 1 / D) S, for 2 D S that are moved; of long vectors alone."""
    near = Near(tuple(rank * n_nodes // n_workers for rank in range(n_workers)), 0)
    shares = dict.fromkeys(range(n_workers), LEAST_BYTES)
    size = sum(shares.values())
    assert near.at_once(shares) == size * (n_workers - n_workers // n_nodes)
    assert near.by_domain(shares) == size * (n_nodes - 1) + size - size // n_nodes
    assert near.pays(size, range(n_workers)) is pays
    assert not near.pays(LEAST_BYTES - 4, range(n_workers))


@pytest.mark.parametrize("nodes", [(0, 0, 0), (), (2,)])
def test_ranks_that_are_not_near_different_memory_cross_nothing(nodes):
    near = Near(nodes, 0)
    assert not near.pays(1 << 30, range(len(nodes)))
    assert len(near.runs) <= 1
    assert near.at_once(dict.fromkeys(range(len(nodes)), 8)) == 0


def test_groups_of_ranks_may_be_taken_for_domains_and_a_server_is_in_one_of_them():
    assert groups(5, 2) == [0, 0, 0, 1, 1]
    assert runs_of(groups(5, 2)[1:]) == [slice(0, 2), slice(2, 4)]
    assert runs_of(groups(3, 5)) == [slice(0, 1), slice(1, 2), slice(2, 3)]
    assert runs_of([1, 0, 0, 1]) == [slice(0, 1), slice(1, 3), slice(3, 4)]


@pytest.mark.parametrize(("at", "message"), [(0, "any_workers"), (1, "collective.chunk_bytes=0"), (2, "groups")])
def test_domains_asked_for_where_they_cannot_be_are_refused(at, message):
    plain = [True, False, False]
    need_plain(2, *plain)
    plain[at] = not plain[at]
    for asked in ("auto", 1):
        need_plain(asked, *plain)
    with pytest.raises(UserError, match=f"collective.domains=2 needs .*{message}.*domains=auto"):
        need_plain(2, *plain)
