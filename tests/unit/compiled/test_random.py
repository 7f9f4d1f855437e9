"""Philox4x32-10 and what is drawn with it."""

import numpy as np
import pytest

from psframe import compiled

# the known answers that Salmon et al. publish with Random123 (counter, key, result)
KNOWN = [
    ([0] * 4, 0, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([2**32 - 1] * 4, 2**64 - 1, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        0x299F31D0A4093822,
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


def draw(seed, stream, epoch, samples, m):
    out = np.empty((len(samples), m), np.float32)
    compiled.random.uniform(seed, stream, epoch, np.asarray(samples, np.int64), out)
    return out


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_philox_known_answers(counter, key, result):
    words = np.array(counter, np.uint32)
    compiled.random.words(key, words)
    assert words.tolist() == result


def test_number_depends_on_its_coordinates_alone():
    whole = draw(1, 2, 3, range(10), 11)
    np.testing.assert_array_equal(draw(1, 2, 3, [7, 2], 11), whole[[7, 2]])
    np.testing.assert_array_equal(draw(1, 2, 3, [7], 6), whole[[7], :6])
    for other in (draw(9, 2, 3, range(10), 11), draw(1, 9, 3, range(10), 11), draw(1, 2, 9, range(10), 11)):
        assert (other != whole).mean() > 0.99


def test_numbers_are_uniform_in_0_1():
    drawn = draw(0, 16, 0, range(1000), 100)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    counts = np.histogram(drawn, 20, (0, 1))[0]
    assert ((counts - 5000) ** 2 / 5000).sum() < 60  # chi-square with 19 degrees of freedom: p = 4e-6


def test_rows_must_match_samples():
    with pytest.raises(ValueError, match="2 rows for 3 samples"):
        compiled.random.uniform(0, 0, 0, np.arange(3), np.empty((2, 4), np.float32))
