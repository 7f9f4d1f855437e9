"""The port that is held for a rank's store: given to nobody else, and to a store at once."""

import socket
from datetime import timedelta

import pytest

from psframe.bench.torch import reserved_port

pytest.importorskip("torch", reason="PyTorch, whose store this is, is not installed: pip install -e .[torch]")


def test_store_listens_on_a_port_that_is_held():
    from torch.distributed import TCPStore

    with reserved_port() as port:
        for _ in range(2):  # the second one where connections of the first have just ended
            store = TCPStore("127.0.0.1", port, None, True, wait_for_workers=False)
            other = TCPStore("127.0.0.1", port, None, False, timeout=timedelta(seconds=20))
            other.set("key", "value")
            assert store.get("key") == b"value"
            del other, store


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2", ""])
def test_port_that_is_held_is_given_to_nobody(address):
    """A server that takes no port in use must not find it, on any address."""
    with reserved_port() as port, socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((address, port))


def test_ports_that_are_held_differ():
    with reserved_port() as one, reserved_port() as other:
        assert one != other
