"""Phases in which activations are used: outside of them, nothing of a step reads what they hold."""

from functools import partial

import numpy as np
import pytest

from psframe.memory.tensor_names import tensor_of
from psframe.memory.tier_options import Window
from psframe.train.assembly.windows import windows
from tests.helpers import tiny
from tests.helpers.phases import N_CLASSES, announce, by_tensor, step_of

SHAPE, BATCH = (2, 8, 8), 4
MODELS = {"deep": tiny.deep, "residual": tiny.residual, "meeting": partial(tiny.meeting, norm="batch")}


def network_of(model, n_samples=BATCH, **more):
    network, allocator = by_tensor(MODELS[model](SHAPE, N_CLASSES), SHAPE, n_samples, "blas", **more)
    memory = {}
    for place, block in allocator.blocks:
        memory.setdefault(place, []).append(block)
    return network, memory


def gradients(network, passing=lambda phase: None):
    announce(network, passing)
    step_of(network, BATCH)()
    return network.arena.grads.copy()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("part", [BATCH, 2])
def test_layers_announce_each_phase_in_turn(model, part):
    network, _ = network_of(model, adds=True)
    first = network.sections[0]
    if part < BATCH:  # as of a network whose outputs fill the cache
        first.part, first.joined = part, np.empty((BATCH, *network.shape_before(len(first.layers))), np.float32)
    seen = []
    gradients(network, seen.append)
    assert list(dict.fromkeys(seen)) == list(range(2 * len(network.active)))
    assert seen == sorted(seen)
    seen.clear()
    network.evaluate(np.zeros((1, *network.input_shape), np.float32), np.zeros(1, np.int64))
    assert not seen


@pytest.mark.parametrize("model", MODELS)
def test_what_an_activation_holds_outside_its_window_is_never_read(model):
    network, memory = network_of(model)
    expected = gradients(network)
    found = windows(network, BATCH, memory)
    assert {tensor_of(place).rpartition(".")[2] for place in found} == {"kept"}
    assert len(found) >= 3
    for place, window in found.items():
        network, memory = network_of(model)
        arrays = [block.view(np.uint8) for block in memory[place]]
        saved, ends = [], [w.start for w in [window.between] if w] + [window.within.stop]

        def passing(phase, window=window, arrays=arrays, saved=saved, ends=ends):
            if phase in ends and not saved:
                saved[:] = [array.copy() for array in arrays]
                for array in arrays:
                    array[:] = 255  # NaN
            elif phase == window.between.stop and saved:
                for array, before in zip(arrays, saved, strict=True):
                    array[:] = before
                saved.clear()

        assert np.array_equal(gradients(network, passing), expected), (place, window)


def test_windows_are_of_steps_of_one_pass_through_all_layers():
    network, memory = network_of("deep")
    n = len(network.active)
    assert windows(network, BATCH, memory)["activations/0.Conv2d.kept"] == Window(0, 1, n)
    assert windows(network, BATCH + 1, memory) == {}
    assert windows(*[(again := network_of("deep", n_kept=2))[0], BATCH, again[1]]) == {}
    for section in network.sections:
        section.part = 1  # a batch passes these layers in parts
    assert windows(network, BATCH, memory) == {}
