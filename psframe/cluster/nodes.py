"""Nodes of a job (:func:`prove`): ranks that have proven to share memory, which then holds their gates.

Candidates are the ranks under one kernel (:func:`split_by_kernel`), even in different containers.
"""

import os
import secrets
import socket
from contextlib import suppress
from pathlib import Path

import numpy as np

from psframe import compiled
from psframe.cluster import communicators, gates, heartbeat, node_gather, stop_flag
from psframe.cluster.mpi import MPI
from psframe.cluster.node_channel import FOLDER, LeaderEnded, Link, accept, connect, listen

TOKEN_BYTES = 16  # too long to be guessed
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # drawn at boot; the same in all containers of a kernel


def split_by_kernel(world: "MPI.Comm") -> "MPI.Comm":
    """Return a communicator of the ranks under this rank's kernel, in their order. All ranks must call.

    MPI goes by addresses, by which each container may be a separate machine. If any rank cannot read the kernel's boot
    ID, MPI's answer counts.
    """
    try:
        boot_id = BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        boot_id = ""
    boot_ids = world.allgather(boot_id)
    if not all(boot_ids):
        return communicators.keep(world.Split_type(MPI.COMM_TYPE_SHARED, key=world.rank))
    return communicators.keep(world.Split(boot_ids.index(boot_id), key=world.rank))


def prove(candidates: "MPI.Comm") -> "tuple[MPI.Comm, Link, np.ndarray, int]":
    """Return this rank's node as a communicator, its link, and shared memory for its gates with the file descriptor.

    The memory is uint8 (control_bytes,); the descriptor is -1 if the rank is alone. ``candidates`` are the ranks under
    one kernel; all of them must call.
    """
    while candidates.size > 1:
        leads = candidates.rank == 0
        peers = _connect(candidates)
        shared = None
        link = Link(peers, leads)
        if leads or peers:
            shared = _same_memory(link, control_bytes(candidates.size))
        proven = leads or shared is not None
        proven_by_rank = candidates.allgather(proven)
        if all(proven_by_rank) and shared:
            return candidates, link, *shared
        link.close()
        # the ranks that share memory with the first try again among themselves, and so do the others
        candidates = communicators.keep(candidates.Split(0 if proven else 1, key=candidates.rank))
    # a single rank needs no shared memory
    return candidates, Link([], True), np.frombuffer(compiled.numa.Block(control_bytes(1)), np.uint8), -1


def control_bytes(n_ranks: int) -> int:
    """Return the size of the gates of ``n_ranks`` ranks, and of their halt, board and pulse behind them, in bytes."""
    return gates.size(n_ranks) + stop_flag.N_BYTES + node_gather.size(n_ranks) + heartbeat.size(n_ranks)


def _connect(candidates: "MPI.Comm") -> list[socket.socket]:
    """Return, on the first rank, sockets to the ranks that can reach it; on these, one socket to it.

    An abstract name ends at a network namespace; ranks beyond it may connect by a file, if containers share a folder.
    """
    peers: list[socket.socket] = []
    for folder in ("", FOLDER):
        missing = candidates.allgather(candidates.rank > 0 and not peers)
        if folder and not any(missing):
            break
        server, address = None, ""
        if candidates.rank == 0:
            with suppress(OSError):  # no such folder, or it is full
                server, address = listen(candidates.size, folder)
        address = candidates.bcast(address)
        if address and missing[candidates.rank] and (peer := connect(address)):
            peers.append(peer)
        arrived = candidates.gather(missing[candidates.rank] and bool(peers))
        if server is not None and arrived is not None:
            peers += accept(server, sum(arrived))
            server.close()
            if folder:
                os.unlink(address)
    return peers


def _same_memory(link: Link, n_bytes: int) -> tuple[np.ndarray, int] | None:
    """Return shared memory and its descriptor; None unless this rank reads the first rank's token in it."""
    try:
        memory, fd = link.share_open(n_bytes + TOKEN_BYTES)
    except (OSError, LeaderEnded):
        return None
    token, place = list(secrets.token_bytes(TOKEN_BYTES)), memory[n_bytes:]
    if link.leads:
        place[:] = token
    token = link.tell(token if link.leads else None)
    if place.tolist() != token:
        os.close(fd)
        return None
    return memory[:n_bytes], fd
