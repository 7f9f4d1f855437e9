"""Placement by tensor: names and patterns, pages of each tensor, what is refused, what is reckoned with."""

import os
import re
from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from psframe import compiled
from psframe.config.placement_spec import ROLES, spelled_out
from psframe.config.registry import bind
from psframe.errors import UserError
from psframe.memory.allocator import Allocator, Home
from psframe.memory.arena import Arena, Layout
from psframe.memory.labels import Labels
from psframe.memory.placement import TABLE
from psframe.memory.process_site import Site
from psframe.memory.role_placement import Places
from psframe.memory.tensor_names import Names, key_of, place_of, role_of, tensor_of
from psframe.memory.topology import read
from psframe.nn.base import Param
from psframe.train.assembly.sizes import Sizes
from tests.helpers.machine_trees import knl

PAGE = compiled.numa.PAGE_BYTES
NAMES = ["0.Conv2d.weight", "0.Conv2d.bias", "2.Conv2d.kept", "3.Dense.weight", "10.Dense.weight", "input"]
HERE = Site(read("/"), tuple(os.sched_getaffinity(0)))


def places(site=HERE, fallback="none", **specs):
    return Places(
        site, {r: bind(f"placement.{r}", TABLE, spelled_out(specs.get(r, "default"))) for r in ROLES}, fallback
    )


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*", NAMES),
        ("conv*", NAMES[:3]),
        ("conv1", NAMES[:2]),
        ("CONV2", NAMES[2:3]),
        ("*.bias", NAMES[1:2]),
        ("dense2", NAMES[4:5]),
        ("dense?.weight", NAMES[3:5]),
        ("0.conv2d", NAMES[:2]),
        ("10.Dense.weight", NAMES[4:5]),
        ("input", NAMES[5:]),
        ("conv2d1", []),
        ("1*", NAMES[4:5]),
    ],
)
def test_pattern_finds_tensors_by_each_spelling(pattern, expected):
    names = Names(reversed(NAMES))
    assert {name for name in NAMES if names.chosen(name, [pattern])} == set(expected)
    with nullcontext() if expected else pytest.raises(UserError, match=re.escape(f"got {pattern!r}")):
        names.check("placement.parameters", [pattern])


def test_first_pattern_that_matches_counts():
    names = Names(NAMES)
    assert names.chosen("0.Conv2d.bias", ["dense*", "*.bias", "conv1"]) == "*.bias"
    assert names.chosen("0.Conv2d.bias", ["dense*"]) is None


@given(role=st.sampled_from(ROLES), tensor=st.sampled_from(["", *NAMES]))
def test_place_tells_role_and_tensor(role, tensor):
    place = place_of(role, tensor)
    assert (role_of(place), tensor_of(place)) == (role, tensor)
    assert key_of(place).startswith(f"placement.{role}")


@example([0, 3, 0, 1], 0, 2047)
@given(st.lists(st.integers(0, 5 * PAGE), min_size=1, max_size=12), st.integers(0, 3 * PAGE), st.integers(0, PAGE - 1))
def test_pages_of_a_mapping_are_cut_once_each_near_where_tensors_begin(sizes, before, gap):
    """Tensors one behind the other, with zeros between them, somewhere in a mapping that has more."""
    starts = np.cumsum([before, *(size + gap for size in sizes)])
    total = -(-int(starts[-1] + 2 * PAGE) // PAGE) * PAGE
    memory = np.frombuffer(compiled.numa.Block(total), np.uint8)
    labels = Labels()
    labels.add(memory, [(str(k), int(at), int(at) + n) for k, (at, n) in enumerate(zip(starts, sizes, strict=False))])
    parts = labels.cut(memory)
    assert sum(len(part.memory) for part in parts) == total
    assert all(len(part.memory) % PAGE == 0 for part in parts)
    at = memory.ctypes.data
    for part in parts:  # in order, without a hole
        if len(part.memory):
            assert part.memory.ctypes.data == at
            at += len(part.memory)
    for k, size in enumerate(sizes):
        mine = [part for part in parts if part.tensor == str(k)]
        assert len(mine) == (size > 0)
        for part in mine:
            begin = part.memory.ctypes.data - memory.ctypes.data if len(part.memory) else None
            assert begin is None or abs(begin - starts[k]) <= PAGE // 2
            assert part.n_shared <= len(part.memory) // PAGE
            behind = next((int(starts[j]) for j in range(k + 1, len(sizes)) if sizes[j]), total)
            end = starts[k] + size  # zeros of less than a page belong to the tensor before them
            end = behind if behind - end < PAGE else end
            assert abs(len(part.memory) - (end - starts[k])) <= PAGE


def test_tensors_that_fill_pages_share_none():
    memory = np.frombuffer(compiled.numa.Block(6 * PAGE), np.uint8)
    labels = Labels()
    labels.add(memory[PAGE:], [("a", 0, 2 * PAGE), ("b", 2 * PAGE, 3 * PAGE)])
    found = [(part.tensor, len(part.memory) // PAGE, part.n_shared) for part in labels.cut(memory)]
    assert found == [("", 1, 0), ("a", 2, 0), ("b", 1, 0), ("", 2, 0)]
    labels.add(memory[4 * PAGE :], [("c", 0, PAGE + 1)])  # ends on a page of what follows
    assert [(part.tensor, len(part.memory) // PAGE) for part in labels.cut(memory)][-2:] == [("b", 1), ("c", 2)]


def layout():
    tensors = {"0.Dense.weight": Param((64, 64), (0, 1)), "0.Dense.bias": Param((64,), (0,))}
    return Layout({**tensors, "1.Dense.weight": Param((10, 64), (0, 1))})


def test_allocator_keeps_tensors_apart_only_where_they_are_placed_apart():
    apart = {role: Home(by_tensor=True) for role in ("parameters", "activations")}
    allocator = Allocator(homes=apart)
    arena = Arena(layout(), 1, allocator)
    first = allocator.zeros((3, 5), "float32", "activations", "0.Dense.kept")
    second = allocator.zeros(7, "float32", "activations", "1.Dense.kept")
    again = allocator.zeros(100, "float32", "activations", "0.Dense.kept")
    assert {array.ctypes.data % PAGE for array in (first, second, again, arena.params)} == {0}
    sizes = Sizes.of(allocator, 0)
    assert sizes.by_place["activations/0.Dense.kept"] == 64 + 448
    assert sizes.by_place["parameters/0.Dense.weight"] == 4 * PAGE
    assert sizes.by_place["parameters/0.Dense.bias"] == 0  # on a page of its neighbours
    assert sizes.private["parameters"] == 0  # placed once it is known whose it is
    assert "gradients/0.Dense.weight" not in sizes.by_place
    assert sizes.by_place["gradients"] == layout().size * 4
    together = Allocator()
    Arena(layout(), 1, together)
    assert set(Sizes.of(together, 0).by_place) == {"parameters", "gradients", "optimizer"}


def test_tensors_are_placed_by_their_first_pattern(tmp_path):
    site = Site(read(knl(tmp_path)), (0,))
    spec = {"default": "ddr", "*.bias": {"numa": [0]}, "conv*": "hbw"}
    found = places(site, parameters=spec)
    assert found.homes()["parameters"].by_tensor
    assert not found.homes()["gradients"].by_tensor
    found.settle({"parameters": NAMES})
    nodes = {name: found.policies[place_of("parameters", name)].nodes for name in NAMES}
    assert nodes == {name: (1,) if "Conv" in name and "bias" not in name else (0,) for name in NAMES}
    assert found.summary()["parameters/0.Conv2d.bias"] == "numa"
    assert found.summary()["parameters"] == "ddr"
    found.spill("parameters")
    assert {policy.nodes for place, policy in found.policies.items() if role_of(place) == "parameters"} == {(0,)}
    assert found.summary()["parameters/0.Conv2d.weight"] == "hbw -> ddr"


@pytest.mark.parametrize(
    ("spec", "is_near"),
    [
        ("default", True),
        ("ddr", True),
        ("hbw", True),
        ({"default": "hbw", "conv*": "ddr"}, True),
        ("auto", True),
        ({"name": "hbw", "policy": "interleave"}, False),
        ("interleave", False),
        ({"weighted": {"hbw": 3, "ddr": 1}}, False),
        ({"numa": [0]}, False),
    ],
)
def test_memory_is_near_its_rank_where_a_placement_says_so_and_stays_so_after_a_spill(tmp_path, spec, is_near):
    found = places(Site(read(knl(tmp_path)), (0,)), gradients=spec)
    assert ("gradients" in found.near) is is_near
    found.spill("gradients")
    assert ("gradients" in found.near) is is_near
    assert found.plan.get("spilled", []) == ["gradients"] * (spec == "auto")
    assert "parameters" in found.near


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        ({"data": {"default": "ddr", "x": "ddr"}}, "placement.data must be one place, since it has no tensors"),
        ({"exchange": {"default": "ddr"}}, "placement.exchange must be one place"),
        (
            {"gradients": {"default": "ddr", "a": "hbv"}},
            "placement.gradients: a.name: there is no 'hbv'; did you mean 'hbw'",
        ),
        ({"gradients": {"default": {"default": "ddr"}}}, "default must be one place"),
        ({"gradients": {"default": "default", "a": "auto"}}, "a must be one place"),
        ({"gradients": {"default": {"name": "default", "huge_pages": "2M"}}}, "pages of the size"),
        ({"gradients": {"default": "default", "a": {"numa": [4000]}}}, r"placement.gradients, a: nodes must be"),
        ({"gradients": {"default": "default", "a": 3}}, "a must be"),
        ({"gradients": {"default": "default", "a": {"numa": [0], "policy": "bind"}}}, "takes no policy"),
    ],
)
def test_placement_by_tensor_that_cannot_be_is_refused(specs, words):
    with pytest.raises(UserError, match=words):
        places(**specs)


def test_pattern_of_no_tensor_is_refused_with_those_there_are():
    found = places(parameters={"default": "default", "conv*": "default", "dens1": "default"})
    with pytest.raises(
        UserError, match=r"must match a tensor or a layer, got 'dens1'; did you mean 'dense1'.*conv1, conv2"
    ):
        found.settle({"parameters": NAMES})


def test_fallback_is_of_the_pattern_alone(tmp_path):
    site = Site(read(knl(tmp_path, hbw=0)), (0,))
    found = places(site, "ddr", parameters={"default": "ddr", "conv1": "hbw"})
    found.settle({"parameters": NAMES})
    assert found.summary()["parameters/0.Conv2d.weight"] == "hbw -> ddr"
    assert found.summary()["parameters/3.Dense.weight"] == "ddr"
    assert "placement.parameters, conv1=hbw fell back to ddr" in site.notes[0]
