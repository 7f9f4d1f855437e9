"""What is wanted of each NUMA node against what is free there, and what became of it."""

import errno
import mmap
import os
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psframe import compiled
from psframe.memory import audit, budget
from psframe.memory.audit import Pages, complaint
from psframe.memory.budget import Demand, spread, too_small
from psframe.memory.pages import Policy
from tests.helpers.launcher import ROOT

MB = 1 << 20
NEAR, FAR = (4, 0), (5, 0)


def demand(role, mb, mode, *nodes, huge_pages="none"):
    return Demand(role, mb * MB, Policy(mode, nodes, huge_pages))


def test_bound_memory_must_fit_on_its_node():
    wanted = [demand("parameters", 60, "bind", 4), demand("gradients", 60, "bind", 4)]
    taken = spread(wanted, {NEAR: 100 * MB, FAR: 100 * MB})
    assert taken == {NEAR: {"parameters": 60 * MB, "gradients": 60 * MB}}
    assert too_small(taken, {NEAR: 100 * MB}) == [NEAR]
    assert too_small(taken, {NEAR: 120 * MB}) == []


def test_memory_bound_to_several_nodes_takes_the_first_with_room():
    wanted = [demand("data", 150, "bind", 4, 5), demand("parameters", 40, "bind", 4)]
    taken = spread(wanted, {NEAR: 100 * MB, FAR: 100 * MB})
    assert taken[NEAR] == {"parameters": 40 * MB, "data": 60 * MB}
    assert taken[FAR] == {"data": 90 * MB}
    assert too_small(taken, {NEAR: 100 * MB, FAR: 100 * MB}) == []


def test_interleaved_memory_takes_the_same_of_each():
    taken = spread([demand("data", 150, "interleave", 4, 5)], {NEAR: 100 * MB, FAR: 70 * MB})
    assert taken[NEAR] == taken[FAR] == {"data": 75 * MB}
    assert too_small(taken, {NEAR: 100 * MB, FAR: 70 * MB}) == [FAR]


def test_huge_pages_are_a_room_of_their_own():
    wanted = budget.demands({"parameters": 1}, {"parameters": Policy("bind", (4,), "2M")})
    assert wanted[0].n_bytes == 2 * MB
    taken = spread(wanted, {NEAR: 100 * MB})
    assert too_small(taken, {NEAR: 100 * MB}) == [(4, 2 * MB)]


def test_huge_pages_that_may_lie_anywhere_must_be_somewhere():
    room = {(0, 2 * MB): 6 * MB, (1, 2 * MB): 4 * MB, (0, 0): 100 * MB}
    wanted = [demand("data", 4, "default", huge_pages="2M"), demand("gradients", 4, "preferred", 1, huge_pages="2M")]
    assert too_small(spread(wanted, room), room) == []
    assert too_small(spread([*wanted, demand("exchange", 4, "default", huge_pages="2M")], room), room)
    assert too_small(spread([demand("data", 2, "default", huge_pages="1G")], room), room)
    bound = [demand("data", 6, "bind", 0, huge_pages="2M"), demand("gradients", 4, "default", huge_pages="2M")]
    assert too_small(spread(bound, room), room) == []  # what may lie anywhere leaves room for what may not


def test_memory_that_may_lie_elsewhere_is_not_counted():
    assert spread([demand("data", 1000, "preferred", 4), demand("data", 1000, "default")], {}) == {}


ROLES = st.sampled_from(["parameters", "gradients", "data"])
NODES = st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True)


@given(
    st.lists(st.tuples(ROLES, st.integers(0, 100), NODES), max_size=12),
    st.dictionaries(st.integers(0, 3), st.integers(0, 200)),
)
def test_bytes_are_counted_once(demands, free):
    room = {(node, 0): mb * MB for node, mb in free.items()}
    taken = spread([demand(role, mb, "bind", *nodes) for role, mb, nodes in demands], room)
    assert sum(by_role.total() for by_role in taken.values()) == sum(mb for _, mb, _ in demands) * MB
    if sum(mb for _, mb, _ in demands) > sum(free.values()):
        assert too_small(taken, room)


@given(st.lists(st.tuples(ROLES, st.integers(0, 100), st.integers(0, 3)), max_size=12), st.integers(1, 300))
def test_node_is_too_small_for_more_than_it_has(demands, mb_free):
    room = {(node, 0): mb_free * MB for node in range(4)}
    taken = spread([demand(role, mb, "bind", node) for role, mb, node in demands], room)
    bound = {node: sum(mb for _, mb, at in demands if at == node) for node in range(4)}
    assert too_small(taken, room) == [(node, 0) for node, mb in bound.items() if mb > mb_free]


# the audit


def block(n_bytes):
    return np.frombuffer(compiled.numa.Block(n_bytes), np.uint8)


PAGE = os.sysconf("SC_PAGE_SIZE")


def test_pages_that_nobody_touched_are_told_apart():
    memory = block(10 * PAGE)
    memory[: 3 * PAGE] = 1
    assert memory[9 * PAGE] == 0  # to read is not to touch
    pages = audit.count([("data", memory)], {"data": Policy()})["data"]
    assert pages.by_node.total() == 3
    assert pages.untouched == 7
    assert pages.share is None
    assert complaint("data", "default", pages, 1.0) is None


def test_pages_elsewhere_are_a_complaint():
    memory = block(4 * PAGE)
    memory[:] = 1
    pages = audit.count([("data", memory[PAGE : 2 * PAGE]), ("data", memory)], {"data": Policy("bind", (77,))})["data"]
    assert pages.by_node.total() == 5
    assert pages.share == 0
    assert "on NUMA node(s) 77, got 0.0%" in complaint("data", "numa", pages, 0.5)
    assert complaint("data", "numa", pages, 0) is None
    half = Pages((4,), Counter({4: 99, 0: 1}))
    assert complaint("data", "hbw", half, 0.99) is None
    assert "1 on node 0, 99 on node 4" in complaint("data", "hbw", half, 0.991)


def test_audit_touches_no_page():
    """Neither private ones nor those of a file that another has written, though it looks for them a second time."""
    with os.fdopen(os.memfd_create("test"), "r+b") as file:
        file.truncate(8 * PAGE)
        maps = [mmap.mmap(file.fileno(), 8 * PAGE) for _ in range(2)]
    maps[0][:] = bytes([1]) * 8 * PAGE
    for memory in (block(8 * PAGE), np.frombuffer(maps[1], np.uint8)):
        for n_touched in (0, 3):
            memory[: n_touched * PAGE].fill(1)
            for _ in range(2):
                assert audit.located(memory[100:])[-1] == 8 - n_touched


def test_pages_that_the_kernel_does_not_tell_of_are_read_and_looked_for_again(monkeypatch):
    """Those that this process has; also where the memory begins and ends within a page."""
    memory, told, where = block(8 * PAGE), [Counter({-1: 8})], compiled.numa.where
    memory[: 5 * PAGE] = 1
    monkeypatch.setattr(audit, "CHUNK_BYTES", 3 * PAGE)
    read = []
    plain = audit._read_pages
    monkeypatch.setattr(audit, "_read_pages", lambda part: (read.append(len(part)), plain(part)))
    monkeypatch.setattr(audit.compiled.numa, "where", lambda part: told.pop() if told else where(part))
    pages = audit.located(memory[100:-100])
    assert (pages[-1], pages.total()) == (3, 8)
    assert sum(read) == 8 * PAGE - 200


def test_pages_add_up():
    total = Pages((4,), Counter({4: 2}), 1, 0) + Pages((5,), Counter({5: 3}), 0, 7)
    assert total.to_plain() == {"4": 2, "5": 3, "untouched": 1, "denied": 7}
    assert total.asked == (4, 5)


DENIED = """
import os
import numpy as np
from psframe.memory import audit, empty
from psframe.memory.pages import Policy
from psframe import compiled
from psframe.doctor import machine
from psframe.memory.topology import read
memory = empty(100_000, "uint8", {"numa": [0]})
memory[:] = 1
pages = audit.count([("data", memory)], {"data": Policy("bind", (0,))})["data"]
assert pages.denied == -(-100_000 // os.sysconf("SC_PAGE_SIZE")) and not pages.by_node and not pages.untouched
assert pages.share == 0
assert "move_pages is denied" in audit.complaint("data", "numa", pages, 0.5)
assert machine.permissions(read("/"))["mbind"].startswith("denied (EPERM")
"""


def test_sandbox_that_denies_is_told_from_pages_elsewhere():
    command = [sys.executable, "-m", "tests.helpers.denied", "mbind,move_pages", sys.executable, "-c", DENIED]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_node_that_is_not_there_is_the_kernels_error():
    with pytest.raises(OSError) as caught:  # noqa: PT011
        compiled.numa.mbind(block(PAGE), "bind", [4095])
    assert caught.value.errno == errno.EINVAL
    with pytest.raises(OSError):  # noqa: PT011
        compiled.numa.mbind(block(PAGE), "bind", [1 << 20])


def test_memory_is_bound_to_all_of_its_nodes():
    """The kernel leaves out nodes that do not exist, and refuses a set in which none does."""
    compiled.numa.mbind(block(PAGE), "bind", [0, 63])
    with pytest.raises(OSError, match="Invalid argument"):
        compiled.numa.mbind(block(PAGE), "bind", [63])
