"""Places at which a vector may be cut."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psframe.collectives.base import cut
from psframe.memory.extent import Extent

extents = st.builds(
    lambda lengths: Extent(sum(lengths), np.cumsum([0, *lengths]).tolist()), st.lists(st.integers(0, 50), max_size=12)
)


@given(extents, st.integers(1, 9))
def test_pieces_tile_the_vector_and_end_at_places(extent, parts):
    pieces = [extent.cut(parts, part) for part in range(parts)]
    assert [0, *(piece.stop for piece in pieces)] == [*(piece.start for piece in pieces), int(extent)]
    assert {end for piece in pieces for end in (piece.start, piece.stop)} <= set(extent.places)


@given(extents, st.integers(1, 9), st.data())
def test_pieces_of_a_slice_tile_it(extent, parts, data):
    start, stop = sorted(data.draw(st.tuples(*[st.sampled_from(extent.places)] * 2)))
    pieces = [extent.cut(parts, part, slice(start, stop)) for part in range(parts)]
    assert [start, *(piece.stop for piece in pieces)] == [*(piece.start for piece in pieces), stop]
    assert {end for piece in pieces for end in (piece.start, piece.stop)} <= set(extent.places)


@given(st.integers(0, 10**6), st.integers(1, 99))
def test_vector_without_places_is_cut_as_a_number(size, parts):
    assert [Extent(size).cut(parts, part) for part in range(parts)] == [cut(size, parts, part) for part in range(parts)]


@given(extents, st.data())
def test_place_is_the_nearest(extent, data):
    at = data.draw(st.integers(0, int(extent)))
    assert abs(extent.nearest(at) - at) == min(abs(place - at) for place in extent.places)


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_first_has_what_cannot_be_cut(parts):
    assert [Extent(100, ()).cut(parts, part) for part in range(parts)] == [
        slice(0, 100),
        *[slice(100, 100)] * (parts - 1),
    ]


def test_extent_is_its_length():
    assert Extent(8, (3,)) + 1 == 9
    assert np.zeros(Extent(8)).shape == (8,)
    assert Extent(8, (3,)).allowed([1, 3, 8]) == [3, 8]
    assert Extent(8).allowed([1, 3, 8]) == [1, 3, 8]
