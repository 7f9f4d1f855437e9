"""Which rank sums which part of the vector."""

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from psframe.collectives.segments import ITEM_BYTES, chosen, divide
from psframe.memory.extent import Extent
from tests.helpers.suite import IS_FULL

MOST = 5000 if IS_FULL else 200  #: segments


def of_few(given):
    """Return whether a division, by the arguments of ``divide``, has few segments; to count a billion takes minutes."""
    size, page_bytes, chunk_bytes, n_reducers = given
    return not chunk_bytes or size * ITEM_BYTES * n_reducers < MOST * max(chunk_bytes, page_bytes)


divisions = (
    st.tuples(
        st.integers(0, 5000) | st.integers(0, 10**9),
        st.sampled_from([4, 16, 4096, 2 << 20]),
        st.just(0) | st.integers(1, 1 << 14) | st.integers(1 << 20, 1 << 30),
        st.integers(1, 70),
    )
    .filter(of_few)
    .map(lambda given: divide(*given))
)

lengths = st.lists(st.integers(0, 3000), max_size=20).filter(any)
extents = lengths.map(lambda found: Extent(sum(found), accumulate(found)))
snapped = st.builds(
    divide, extents, st.sampled_from([4, 16, 4096]), st.just(0) | st.integers(1, 1 << 14), st.integers(1, 9)
)


@given(divisions | snapped)
def test_segments_tile_the_vector_and_pages_the_memory(division):
    reducers = range(division.n_reducers)
    summed = [segment for chunk in zip(*map(division.segments, reducers), strict=True) for segment in chunk]
    pages = sorted((part.start, part.stop) for reducer in reducers for part in division.pages(reducer))
    assert [0, *(segment.stop for segment in summed)] == [*(segment.start for segment in summed), division.size]
    assert [0, *(stop for _, stop in pages)] == [*(start for start, _ in pages), division.padded * ITEM_BYTES]
    assert all(stop % division.page_bytes == 0 for _, stop in pages)


@given(divisions)
def test_reducer_sums_what_lies_in_its_pages_and_has_some(division):
    assert 1 <= division.n_reducers <= division.chunk * ITEM_BYTES // division.page_bytes
    for reducer in range(division.n_reducers):
        assert division.within(reducer).start < division.within(reducer).stop
        summed = (segment for segment in division.segments(reducer) if segment.start < segment.stop)
        for segment, part in zip(summed, division.pages(reducer), strict=False):
            assert part.start <= segment.start * ITEM_BYTES < segment.stop * ITEM_BYTES <= part.stop


@given(snapped)
def test_segments_and_chunks_end_between_tensors_and_chunks_have_room(division):
    reducers = range(division.n_reducers)
    ends = {end for reducer in reducers for s in division.segments(reducer) for end in (s.start, s.stop)}
    assert ends | {end for chunk in division.chunks for end in (chunk.start, chunk.stop)} <= set(division.extent.places)
    assert all(chunk.stop - chunk.start <= division.chunk for chunk in division.chunks)
    for number, chunk in enumerate(division.chunks):
        inside = [s for reducer in reducers for s in [list(division.segments(reducer))[number]] if s.start < s.stop]
        assert all(chunk.start <= s.start and s.stop <= chunk.stop for s in inside)


@given(st.integers(1, 300), st.data())
def test_reducers_are_some_of_the_ranks(n_ranks, data):
    ranks = chosen(n_ranks, n_reducers := data.draw(st.integers(1, n_ranks)))
    assert (ranks[0], len(ranks)) == (0, n_reducers)
    assert list(ranks) == sorted(set(ranks) & set(range(n_ranks)))
