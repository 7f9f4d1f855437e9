"""Nodes that are not alike: told once, before the first step, and where."""

import contextlib
import io
import socket
import weakref
from unittest import mock

import numpy as np

from psframe.cluster import consistency
from psframe.cluster.cluster import AgreedError
from psframe.cluster.joining import join
from psframe.datasets import synthetic
from psframe.errors import UserError
from psframe.nn.activations import Flatten, ReLU
from psframe.nn.conv import Conv2d
from psframe.nn.dense import Dense
from psframe.nn.pool import MaxPool2d
from psframe.train.assembly import assemble
from psframe.train.data.dataset import Facts
from tests.helpers import tiny
from tests.ranks.harness import ranks
from tests.ranks.nodes import apart, own_network
from tests.ranks.training import folder, train


def told(world, where, *patches, expect=2):
    """Return what a run on two nodes says on rank 0, where the last rank's node is made another one by patches."""
    said = io.StringIO()
    with contextlib.ExitStack() as stack:
        stack.enter_context(own_network(world, world.rank % 2))
        for patch in patches if world.rank % 2 else ():
            stack.enter_context(patch)
        stack.enter_context(contextlib.redirect_stderr(said))
        train(world, world.size, where, expect=expect)
    everyone = world.allgather(said.getvalue())
    assert not any(everyone[1:]), everyone
    return everyone[0]


@ranks(2, 4)
def psframe_of_another_version_is_refused(world):
    with folder(world) as where:
        said = told(world, where, mock.patch.object(consistency, "code", lambda: "another"))
        assert "all nodes must have one psframe, got 0.1.0 with code another on node 1" in said
        assert said.count("psframe:") == 1


@ranks(2, 4)
def data_with_one_other_sample_are_refused(world):
    numbers = synthetic._numbers

    def other(kind, lo, *rest):
        found = numbers(kind, lo, *rest)
        if kind == synthetic.TRAIN and lo == 0:
            found[7, 0, 0, 0] += 1
        return found

    with folder(world) as where:
        said = told(world, where, mock.patch.object(synthetic, "_numbers", other))
        assert "all nodes must have the same data" in said
        assert said.count("psframe:") == 1


@ranks(2, 4)
def data_are_normalized_on_every_node_by_what_node_0_has_computed(world):
    """The last bits of mean and deviation may differ from CPU to CPU; a node that is alone keeps its own."""
    computed = np.linspace(0.1, 0.6, 6).reshape(2, 3)
    for cluster in (apart(world, 2), join(world)):
        moments = np.nextafter(computed, 1) if cluster.node else computed.copy()
        consistency.check_data(cluster, 7, moments)
        every = world.allgather(moments.tobytes() if cluster.node_rank == 0 else computed.tobytes())
        assert set(every) == {computed.tobytes()}, every


@ranks(2, 4)
def model_that_is_another_is_refused(world):
    build = tiny.build

    def wider(input_shape, n_classes, *, dropout=0.0, width=4):
        return build(input_shape, n_classes, dropout=dropout, width=2 * width)

    with folder(world) as where:
        said = told(world, where, mock.patch.object(tiny, "build", wider))
        assert "all ranks must have one model" in said
        assert said.count("psframe:") == 1


@ranks(2, 4)
def model_that_is_another_on_the_same_node_is_refused(world):
    """As layers that are made by iterating over a set: every process has a hash seed of its own."""

    def orders(rank):
        def build(input_shape, n_classes, *, dropout=0.0, width=4):
            first, second = (MaxPool2d(2), ReLU()) if rank else (ReLU(), MaxPool2d(2))
            return [Conv2d(width, 3, padding=1), first, second, Flatten(), Dense(n_classes)]

        return build

    said = io.StringIO()
    with (
        folder(world) as where,
        mock.patch.object(tiny, "build", orders(world.rank == world.size - 1)),
        contextlib.redirect_stderr(said),
    ):
        train(world, world.size, where, expect=2)
    everyone = world.allgather(said.getvalue())
    assert "all ranks must have one model, got layer 0: Conv2d" in everyone[0], everyone
    assert f"on rank {world.size - 1}" in everyone[0]
    assert not any(everyone[1:])


@ranks(2, 4)
def clock_that_is_minutes_off_is_told_and_no_more(world):
    cluster = apart(world, 2)
    late = mock.patch.object(consistency.time, "time", lambda: 1e9 - 300)
    with late if cluster.node else mock.patch.object(consistency.time, "time", lambda: 1e9):
        warnings = consistency.late_clocks(cluster)
    assert bool(warnings) == (cluster.rank == 0)
    for warning in warnings:
        assert f"the clock of node 1 ({socket.gethostname()}) is 300 s behind" in warning
    assert not consistency.late_clocks(cluster)


@ranks(2, 4)
def mistake_on_one_node_names_its_host(world):
    cluster = apart(world, 2)

    def fails_on(nodes):
        def check():
            if cluster.node in nodes:
                raise UserError("no room")

        return check

    for agree in (cluster.run_on_all, cluster.run_on_nodes):
        for nodes, wanted in (((1,), f"no room (on {cluster.hosts[1]})"), ((0, 1), "no room")):
            try:
                agree(fails_on(nodes))
            except AgreedError as error:
                assert str(error) == wanted, error
            else:
                raise AssertionError("it passed")


@ranks(2, 4)
def nodes_that_are_alike_train(world):
    """And pass once over the data for their checksum."""
    summed = mock.patch.object(Facts, "checksum", autospec=True, side_effect=Facts.checksum)
    with folder(world) as where, summed as sums:
        assert told(world, where, expect=0) == ""
    assert sums.call_count == (world.rank < 2)


@ranks(1, 2)
def network_that_was_held_against_the_others_is_let_go_of(world):
    """It may be as large as the one that is trained."""
    build, provide, networks, alive = consistency.same_network, assemble.build_run, [], []

    def same_network(*given):
        network = build(*given)
        networks.append(weakref.ref(network))
        return network

    def build_run(*given, **keys):
        alive.extend(network for network in networks if network())
        return provide(*given, **keys)

    with (
        folder(world) as where,
        mock.patch.object(consistency, "same_network", same_network),
        mock.patch.object(assemble, "build_run", build_run),
    ):
        train(world, world.size, where)
    assert networks
    assert not alive
