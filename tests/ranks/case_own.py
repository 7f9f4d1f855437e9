"""A collective of a user's own ends in the bits of `buffer`, if its mean is the canonical one."""

from tests.ranks.harness import ranks
from tests.ranks.training import folder, hashes

MODES = ("sync.mode=allreduce", "sync={mode: sync_ps, server: dedicated}", "sync={mode: sync_ps, server: colocated}")
COLLECTIVES = ("collective=buffer", "collective=tests.helpers.own:Rows")


@ranks(4)
def rows_end_in_the_bits_of_buffer(world):
    for mode in MODES:
        with folder(world) as where:
            buffer, rows = [hashes(world, 4, where, mode, collective) for collective in COLLECTIVES]
        assert rows == buffer, mode
