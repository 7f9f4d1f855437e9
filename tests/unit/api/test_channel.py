"""Messages between a script and its ranks: between processes of one user, and until one end is gone."""

import os
import socket
import struct

import numpy as np
import pytest

from psframe.api.channel import Channel, connect, listen
from psframe.errors import UserError


class Peer:
    """A socket whose other end is of the given process, user and group."""

    def __init__(self, *credentials):
        self.credentials, self.is_open = struct.pack("3i", *credentials), True

    def getsockopt(self, level, option, size):
        assert (level, option, size) == (socket.SOL_SOCKET, socket.SO_PEERCRED, len(self.credentials))
        return self.credentials

    def close(self):
        self.is_open = False


@pytest.mark.parametrize("group", [0, 1, 1000])
def test_process_of_the_same_user_is_taken_whatever_its_group(monkeypatch, group):
    monkeypatch.setattr(os, "geteuid", lambda: 7)
    peer = Peer(12, 7, group)
    assert Channel(peer).pid == 12
    assert peer.is_open


@pytest.mark.parametrize("user", [0, 8])
def test_process_of_another_user_is_refused_and_hears_nothing(monkeypatch, user):
    monkeypatch.setattr(os, "geteuid", lambda: 7)
    peer = Peer(7, user, 7)
    with pytest.raises(UserError, match=f"of one user, got {user} and 7"):
        Channel(peer)
    assert not peer.is_open


def test_messages_arrive_both_ways_until_an_end_is_gone():
    listening, name = listen()
    with listening:
        rank = connect(name)
        script = Channel(listening.accept()[0])
    assert rank.pid == script.pid == os.getpid()
    for message in ({"epoch": 1}, np.arange(5), None):
        for sender, receiver in ((rank, script), (script, rank)):
            sender.send(message)
            np.testing.assert_equal(receiver.receive(), message)
    rank.close()
    with pytest.raises(EOFError):
        script.receive()
    script.close()
    with pytest.raises(UserError, match="ranks must be on its machine"):
        connect(name)
