"""Vectors of a server in memory that its node shares (:func:`server_arena`), so that another rank can take over."""

from dataclasses import replace

import numpy as np

from psframe.cluster.roles import Team
from psframe.memory.allocator import Allocator, shared_block
from psframe.memory.arena import Arena, Keeping, Layout, Vectors


def server_arena(team: Team, layout: Layout, n_state: int, allocator: Allocator, keeping: Keeping) -> Arena:
    """Return the arena of a rank of a team with one server, rank 0. All ranks of its node must call.

    The server alone writes its parameters and state, ``keeping.copies`` of each. It neither copies nor sends them for
    the others, so that to outlive it costs no time. Ranks of other nodes have the parameters that they receive alone.
    """
    serves, near = team.comm.rank == 0, team.cluster is not None and team.cluster.node == 0
    params, state = [], []
    for _ in range(keeping.copies if near else 0):
        params.append(_shared(allocator, 1, layout.size, "parameters", serves)[0])
        state.append(_shared(allocator, n_state, layout.size, "optimizer", serves))
    if not serves:
        arena = Arena(layout, 0, allocator, keeping=replace(keeping, copies=1))
        arena.of_server = Vectors(params, arena.grads, state) if near else None
        return arena
    bfloat16 = [allocator.zeros(layout.size, np.uint16, "parameters") for _ in params if keeping.bfloat16]
    grads = allocator.zeros(layout.size, np.float32, "gradients")
    vectors = Vectors(params, grads, state, bfloat16)
    return Arena(layout, n_state, allocator, vectors=vectors, shared=False, keeping=keeping)


def _shared(allocator: Allocator, n: int, size: int, role: str, is_mine: bool) -> np.ndarray:
    n_bytes = 4 * n * size
    memory = shared_block(allocator, n_bytes, role, is_mine)
    return memory[:n_bytes].view(np.float32).reshape(n, size)
