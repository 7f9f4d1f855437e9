"""Rows that a root receives where MPI's offsets, of 31 bits, do not reach their end."""

from unittest import mock

import numpy as np
from mpi4py import MPI

from psframe.collectives import carriers
from tests.ranks.harness import ranks


@ranks(2, 3, 7)
def rows_beyond_the_offsets_are_received_as_wholes(world):
    for offsets in (1, 40, 1 << 31):
        with mock.patch.object(carriers, "OFFSETS", offsets):
            rows = np.zeros((world.size - 1, 12), np.uint8)
            carriers.Buffers(world).gather(np.full(12, world.rank, np.uint8), rows)
            floats = np.zeros((world.size - 1, 5), np.float32)
            own = np.full(5, world.rank + 0.5, np.float32)
            if world.rank == 0:
                world.Igatherv([own, 0, MPI.FLOAT], carriers.of_rows(floats)).Wait()
                assert rows.tolist() == [[rank] * 12 for rank in range(1, world.size)], offsets
                assert floats.tolist() == [[rank + 0.5] * 5 for rank in range(1, world.size)], offsets
            else:
                world.Igatherv(own, None).Wait()
