"""Passes that layers say they make over activations, against what the processor notes of each phase of a step."""

from functools import partial

import numpy as np
import pytest

from psframe.memory.allocator import Allocator
from psframe.memory.arena import Arena
from psframe.nn import reads
from psframe.nn.activations import Dropout, Flatten, ReLU
from psframe.nn.conv import Conv2d
from psframe.nn.dense import Dense
from psframe.nn.network import Network
from psframe.nn.normalization import BatchNorm, GroupNorm
from psframe.nn.pool import AvgPool2d, GlobalAvgPool, MaxPool2d
from psframe.nn.residual import Residual, Subsample
from psframe.nn.smooth import LeakyReLU, SiLU
from tests.helpers.accessed import PAGE, Watch, works
from tests.helpers.phases import N_CLASSES, announce, by_tensor, step_of
from tests.helpers.thinned import thinned

SHAPE, BATCH = (2, 16, 16), 48
CONV = partial(Conv2d, 8, 3, padding=1)
MODELS = {
    "with ReLUs": lambda: [
        *(CONV(), ReLU(), CONV(), MaxPool2d(2), ReLU(), Conv2d(8, 3, padding=1, groups=8), ReLU()),
        *(Dropout(0.5), ReLU(), Flatten(), Dense(256), ReLU(), Dropout(0.2), Dense(N_CLASSES)),
    ],
    "without": lambda: [
        *(CONV(), MaxPool2d(2), CONV(), LeakyReLU(), AvgPool2d(1), Conv2d(8, 1), SiLU()),
        *(Flatten(), Dense(256), Dense(N_CLASSES)),
    ],
    "normalized": lambda: [
        *(CONV(), BatchNorm(), ReLU(), CONV(), GroupNorm(2), CONV(groups=2), BatchNorm(), MaxPool2d(2)),
        *(Flatten(), Dense(N_CLASSES)),
    ],
    "residual": lambda: [
        *(CONV(), BatchNorm(), ReLU()),
        *(Residual([CONV(), BatchNorm(), ReLU(), CONV(), BatchNorm()]), ReLU(), Residual([CONV()])),
        *(Residual([CONV(), BatchNorm()], [Subsample(8)]), Residual([CONV(), Residual([CONV()])], [CONV()]), ReLU()),
        *(GlobalAvgPool(), Dense(N_CLASSES)),
    ],
}


def network_of(model):
    network, allocator = by_tensor(MODELS[model](), SHAPE, BATCH)
    assert all(section.part >= BATCH for section in network.sections)  # or phases take turns
    return network, allocator


def phases(network, arrays):
    """Return the phases of a step in which each array is touched."""
    found, now = {name: set() for name in arrays}, []

    def passing(phase):
        for name in watch.touched() if now else ():
            found[name].add(now[-1])
        now.append(phase)
        watch.forget()

    step = step_of(network, BATCH)
    step()  # compiles, and touches what is new
    announce(network, passing)
    with Watch(arrays) as watch:
        step()
        passing(2 * len(network.active))
    return found


@pytest.mark.parametrize("model", thinned(MODELS, (0, 3)))
def test_outputs_are_touched_in_the_phases_in_which_layers_say_they_read_them(model):
    if not works():
        pytest.skip("this kernel does not tell what a process has touched (/proc/self/clear_refs)")
    network, _ = network_of(model)
    layers = [layer for _, layer in network.active]
    keep = [k for k, layer in enumerate(layers) if getattr(layer, "y", None) is not None]
    outputs = {k: layers[k].y for k in keep if layers[k].y.nbytes >= 4 * PAGE}
    assert len(outputs) >= 4
    last, expected = 2 * len(layers) - 1, {}
    for k in outputs:
        reader = next((other for other in keep if other > k), None)
        own = {k} | {last - k for _ in range(layers[k].reads.output)}
        expected[k] = own | ({reader} | {last - reader for _ in range(layers[reader].reads.backward)})
    assert phases(network, outputs) == expected


@pytest.mark.parametrize("model", thinned(MODELS, (0, 3)))
def test_all_that_is_kept_is_used(model):
    if not works():
        pytest.skip("this kernel does not tell what a process has touched (/proc/self/clear_refs)")
    network, allocator = network_of(model)
    blocks = [(place, np.frombuffer(block, np.uint8)) for place, block in allocator.blocks if place.endswith(".kept")]
    arrays = {f"{place} {k}": array for k, (place, array) in enumerate(blocks) if array.nbytes >= 4 * PAGE}
    assert arrays
    assert all(phases(network, arrays).values())


def test_sum_within_a_residual_layer_reads_both_ways():
    network, _ = network_of("residual")
    blocks = [layer for _, layer in network.active if isinstance(layer, Residual)]
    assert blocks[0].reads == (2, 1, 1)  # by the convolution, and by the sum
    numbers = 8 * 16 * 16
    # a convolution before a normalization, this one before a convolution, and that one before the last normalization
    assert [*reads.within(blocks[0])] == [(numbers, 4), (numbers, 2), (numbers, 4)]
    assert blocks[1].reads == (2, 1, 0)
    assert [*reads.within(blocks[1])] == [(numbers, 1)]
    assert blocks[2].reads == (2, 1, 1)
    assert blocks[3].reads == (2, 2, 1)
    # the first of its body is read by a block, whose convolution the sum reads, as the block and the shortcut
    assert [*reads.within(blocks[3])] == [(numbers, 3), (numbers, 1), (numbers, 1), (numbers, 1)]


def test_views_are_left_out():
    network = Network(
        [Residual([Dropout(0.0), CONV(), Dropout(0.0), CONV()]), Flatten(), Dense(N_CLASSES)], (8, 8, 8), 5
    )
    allocator = Allocator()
    network.bind(Arena(network.layout, 0, allocator), BATCH, allocator)
    block = network.active[0][1]
    assert block.reads == (2, 1, 0)
    assert [*reads.within(block)] == [(512, 2), (512, 1)]
