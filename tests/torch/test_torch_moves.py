"""Parts of a slot, one for each rank of a group of any size, tile it."""

import pytest

pytest.importorskip("torch", reason="PyTorch, whose backend this is, is not installed: pip install -e .[torch]")

from psframe.torch.meeting import GROUP_BYTES, size_of
from psframe.torch.moves import Moves


@pytest.mark.parametrize("n_ranks", [1, 2, 3, 64, 340, 341, 400, 513, 4096])
def test_parts_of_a_slot_lie_within_it(n_ranks):
    slot_bytes, n_bytes, head = size_of(n_ranks)
    assert Moves(0, n_ranks, slot_bytes).sub_bytes * n_ranks <= slot_bytes
    assert n_bytes - head < 2 * GROUP_BYTES or n_ranks > 340
