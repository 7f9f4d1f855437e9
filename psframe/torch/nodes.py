"""Nodes of a group (:func:`meet`): the ranks that share memory, as found by sharing it, and ways to the others."""

import os
import secrets
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from psframe.cluster import node_channel

BOOT = Path("/proc/sys/kernel/random/boot_id")
TOKEN_BYTES = 16
HELLO = struct.Struct("<q")
TIMEOUT_S = 60.0
ELSEWHERE = "192.0.2.1"  # any address on no network of this host (RFC 5737)


@dataclass
class Nodes:
    """Where the ranks of a group are.

    Attributes
    ----------
    ranks : list of list of int
        The group's ranks on each node, ascending; nodes by their first rank, which leads.
    here : int
        This rank's node.
    hosts : list of str
        Host name of each rank.
    n_cores : int
        Cores of this node's ranks together.
    link : Link
        Sockets between the leader and the others of this node.
    listeners : list of socket
        Take messages of other ranks: of this node's, and if there are others, of theirs.
    unix, tcp : list of str
        Addresses of all ranks' listeners.
    token : bytes
        Proves to a listener that a rank of the group connects.
    address : str
        Of this host, by which ranks of other nodes reach it.
    """

    ranks: list[list[int]]
    here: int
    hosts: list[str]
    n_cores: int
    link: node_channel.Link
    listeners: list[socket.socket]
    unix: list[str]
    tcp: list[str] = field(default_factory=list)
    token: bytes = b""
    address: str = ""

    def is_mine(self, rank: int) -> bool:
        """Return True if a rank is on this node."""
        return rank in self.ranks[self.here]

    def connect(self, rank: int) -> socket.socket | None:
        """Return a socket to the listener of a rank; None if it has ended."""
        if self.is_mine(rank):
            return node_channel.connect(self.unix[rank])
        try:
            return _dial(self.tcp[rank], self.token)
        except OSError:
            return None


def meet(store: Any, me: int, n: int) -> Nodes:
    """Find the nodes. Every rank of the group must call.

    A rank asks those before it that run under the same kernel. The first that it can connect to leads its node: that
    shows that memory can be passed, which a host's name does not where containers share it.
    """
    cores = sorted(os.sched_getaffinity(0))
    server, door = node_channel.listen(n)
    listener, unix = node_channel.listen(n)
    about = [BOOT.read_text().strip(), door[1:], unix[1:], ",".join(map(str, cores)), os.uname().nodename]
    store.set(f"about/{me}", " ".join(about))
    every = [word.split(" ", 4) for word in _all(store, "about", n)]
    leader, found = me, None
    for rank in range(me):
        if every[rank][0] == about[0] and (found := node_channel.connect("\0" + every[rank][1])):
            leader = rank
            break
    store.set(f"leader/{me}", str(leader))
    leaders = [int(word) for word in _all(store, "leader", n)]
    ranks = [[rank for rank in range(n) if leaders[rank] == first] for first in sorted(set(leaders))]
    here = next(number for number, members in enumerate(ranks) if me in members)
    sockets = [found] if found else node_channel.accept(server, len(ranks[here]) - 1)
    server.close()
    listener.settimeout(0)
    n_cores = len({core for rank in ranks[here] for core in every[rank][3].split(",")})
    nodes = Nodes(
        ranks,
        here,
        [words[4] for words in every],
        n_cores,
        node_channel.Link(sockets, leader == me),
        [listener],
        ["\0" + words[2] for words in every],
    )
    if len(ranks) > 1:
        nodes.address = own_address(len({words[0] for words in every}) > 1)
        _listen_to_others(nodes, store, me, n)
    return nodes


def _listen_to_others(nodes: Nodes, store: Any, me: int, n: int) -> None:
    """Let ranks of other nodes connect, over TCP."""
    if me == 0:
        store.set("token", secrets.token_hex(TOKEN_BYTES))
    nodes.token = bytes.fromhex(store.get("token").decode())
    listener = _door(nodes.address, store, f"tcp/{me}", n)
    listener.settimeout(0)
    nodes.listeners.append(listener)
    nodes.tcp = _all(store, "tcp", n)


def leaders(nodes: Nodes, store: Any) -> dict[int, socket.socket]:
    """Return sockets to the leaders of the other nodes, by node, which do not block. All leaders must call."""
    found: dict[int, socket.socket] = {}
    n = len(nodes.ranks)
    with _door(nodes.address, store, f"door/{nodes.here}", n) as door:
        door.settimeout(TIMEOUT_S)
        for node, where in enumerate(_all(store, "door", n)[: nodes.here]):
            found[node] = _dial(where, nodes.token + HELLO.pack(nodes.here))
        while len(found) < n - 1:
            way, _ = door.accept()
            way.settimeout(TIMEOUT_S)
            hello = way.recv(TOKEN_BYTES + HELLO.size, socket.MSG_WAITALL)
            if len(hello) == TOKEN_BYTES + HELLO.size and secrets.compare_digest(hello[:TOKEN_BYTES], nodes.token):
                found[HELLO.unpack(hello[TOKEN_BYTES:])[0]] = way
            else:
                way.close()  # no leader of this group
    for way in found.values():
        way.setblocking(False)
        way.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found


def _door(address: str, store: Any, key: str, n: int) -> socket.socket:
    """Return a listener over TCP for ``n`` others, whose address the store has from now on."""
    listener = socket.create_server((address, 0), backlog=n)
    host, port = listener.getsockname()[:2]
    store.set(key, f"{host}:{port}")
    return listener


def _dial(where: str, hello: bytes) -> socket.socket:
    """Return a socket to a listener over TCP, which has been sent the hello."""
    host, _, port = where.rpartition(":")
    found = socket.create_connection((host, int(port)), TIMEOUT_S)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    found.sendall(hello)
    return found


def own_address(over_hosts: bool) -> str:
    """Return the address of this host by which it reaches the first rank's, or as its name says.

    Many a host's name is one of its loopback, where other hosts (``over_hosts``) reach it by its default route's.
    """
    found = _towards(os.environ.get("MASTER_ADDR") or socket.gethostname())
    if over_hosts and (not found or found.startswith("127.")):
        found = _towards(ELSEWHERE) or found
    return found or socket.gethostbyname(socket.gethostname())


def _towards(host: str) -> str:
    """Return this host's address on the way to another one, to which nothing is sent; '' if there is no way."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        try:
            way.connect((host, 1))
            return str(way.getsockname()[0])
        except OSError:
            return ""


def _all(store: Any, name: str, n: int) -> list[str]:
    """Return what every rank has set, which the store waits for."""
    keys = [f"{name}/{rank}" for rank in range(n)]
    found: Sequence[bytes] = store.multi_get(keys) if store.has_extended_api() else [store.get(key) for key in keys]
    return [word.decode() for word in found]
