"""Ranks of ``bench torch``: their store's port is given to nobody else, and none outlives the command."""

import socket
import subprocess
import sys
from datetime import timedelta

import pytest

from psframe.bench import torch as bench
from psframe.bench.torch import reserved_port
from psframe.errors import UserError

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


def ranks(*bodies):
    return [subprocess.Popen([sys.executable, "-c", body], stdout=subprocess.PIPE) for body in bodies]


SLEEPS = "import time; time.sleep(600)"


@pytest.mark.parametrize(
    "bodies", [(SLEEPS, "raise SystemExit(3)"), ("raise SystemExit(3)", SLEEPS), ("", "")], ids=str
)
def test_rank_that_fails_ends_the_others(bodies):
    started = ranks(*bodies)
    with pytest.raises(UserError, match="a rank must end well"):
        bench._ended(started)
    assert all(process.poll() is not None for process in started)


def test_what_ends_the_command_ends_its_ranks(monkeypatch):
    def interrupted(process):
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "_said", interrupted)
    started = ranks(SLEEPS, SLEEPS)
    with pytest.raises(KeyboardInterrupt):
        bench._ended(started)
    assert all(process.poll() is not None for process in started)


def test_first_rank_s_last_line_is_what_was_measured():
    assert bench._ended(ranks("print('a line'); print('{\"ms\": 3}')", "")) == {"ms": 3}
