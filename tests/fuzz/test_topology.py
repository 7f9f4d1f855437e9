"""Whatever is done to the kernel's files, the topology reader returns a topology."""

import json
import os
import shutil
import tempfile
import types
import typing
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from psframe.memory.topology import Topology, read
from tests.helpers import machine_trees as trees
from tests.helpers.suite import examples


def well_typed(value, hint):
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return type(value) is hint and all(well_typed(getattr(value, f.name), hints[f.name]) for f in fields(hint))
    if origin in (typing.Union, types.UnionType):
        return any(well_typed(value, option) for option in inner)
    if origin is tuple and inner[-1] is not Ellipsis:
        return len(value) == len(inner) and all(map(well_typed, value, inner))
    if origin is tuple:
        return type(value) is tuple and all(well_typed(item, inner[0]) for item in value)
    if origin is dict:
        pairs = value.items() if type(value) is dict else [(None, None)]
        return all(well_typed(k, inner[0]) and well_typed(v, inner[1]) for k, v in pairs)
    return type(value) is hint


def check(found):
    assert well_typed(found, Topology)
    json.dumps(asdict(found))
    numbers = [node.number for node in found.nodes]
    assert numbers
    assert numbers == sorted(set(numbers))
    cpus = [cpu for core in found.cores for cpu in core]
    held = [cpu for node in found.nodes for cpu in node.cpus]
    assert len(cpus) == len(set(cpus))
    assert len(held) == len(set(held))
    assert set(held) <= set(cpus)
    assert set(found.hbw) | set(found.ddr) <= set(found.memory) <= set(numbers)
    assert not set(found.offline_cpus) & set(cpus)
    assert len(found.notes) == len(set(found.notes))
    assert all("\n" not in note for note in found.notes)
    for node in found.nodes:
        assert 0 <= node.free_bytes <= node.total_bytes
        assert (node.tier is None) == (node.total_bytes == 0)
        assert set(node.distances) in (set(), set(numbers))
    home = found.home(cpus[:3])
    assert found.nearest(home, numbers) in numbers


def damage(path, how, data):
    """Put something else in a file's place, or take its folder away."""
    if how == "folder gone":
        shutil.rmtree(path.parent, ignore_errors=True)
        return
    if not path.is_file() or path.is_symlink():
        return
    path.unlink()
    if how == "bytes":
        path.write_bytes(data)
    elif how == "folder":
        path.mkdir()
    elif how == "dangling":
        path.symlink_to("nowhere")
    elif how == "loop":
        path.symlink_to(path.name)
    elif how == "pipe":
        os.mkfifo(path)
    elif how == "huge":
        path.write_bytes(b"0," * (1 << 20))


#: not only rubbish: what looks like a list or a number gets further
CONTENT = st.binary(max_size=60) | st.text("0123456789,-:/ xkKB\n", max_size=30).map(str.encode)
HOW = st.sampled_from(["bytes"] * 6 + ["gone", "folder", "dangling", "loop", "pipe", "huge", "folder gone"])
MACHINES = {
    "knl": lambda root: trees.knl(root, 2, n_cores=4, threads=2, hmat=True),
    "xeon-max": lambda root: trees.xeon_max(root, 2, n_cores=4, threads=1),
    "old": lambda root: trees.machine(root, {0: trees.Memory("0-1"), 8: trees.Memory()}, offline="2"),
}


@settings(max_examples=examples(300), print_blob=True)  # a failure shows how to repeat it
@given(
    st.sampled_from(sorted(MACHINES)), st.lists(st.tuples(st.integers(0, 10_000), HOW, CONTENT), min_size=1, max_size=6)
)
def test_damaged_trees(name, damages):
    with tempfile.TemporaryDirectory() as folder:
        root = MACHINES[name](Path(folder))
        trees.put(root, "sys/devices/virtual/memory_tiering/memory_tier4/nodelist", "0")
        trees.put(root, "proc/self/cgroup", "0::/a/b")
        places = sorted(path for path in root.rglob("*") if path.is_file())
        for index, how, data in damages:
            damage(places[index % len(places)], how, data)
        check(read(root))


def test_tree_of_rubbish(tmp_path):
    for path in sorted(trees.knl(tmp_path, 4, n_cores=8, threads=2).rglob("*")):
        if path.is_file():
            path.write_bytes(bytes(range(256)))
    check(read(tmp_path))


def test_unreadable_notes_hold_one_line(tmp_path):
    trees.machine(tmp_path, {0: trees.Memory("0-1")})
    (tmp_path / "proc/self/status").unlink()
    trees.put(tmp_path, "proc/self/cgroup", "0::/a\0b\x1b[31m")
    check(read(tmp_path))
