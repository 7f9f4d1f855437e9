"""Nodes that are not alike: told once, before the first step, and where."""

import contextlib
import io
import socket
from unittest import mock

from psframe import alike
from psframe.cluster import AgreedError
from psframe.datasets import synthetic
from psframe.errors import UserError
from tests import tiny
from tests.ranks.case_cluster import own_network
from tests.ranks.case_nodes import apart
from tests.ranks.harness import ranks
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
def another_psframe_is_refused(world):
    with folder(world) as where:
        said = told(world, where, mock.patch.object(alike, "code", lambda: "another"))
        assert "all nodes must have one psframe, got 0.1.0 with code another on node 1" in said
        assert said.count("psframe:") == 1


@ranks(2, 4)
def one_other_sample_is_refused(world):
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
def another_model_is_refused(world):
    build = tiny.build

    def wider(input_shape, n_classes, *, dropout=0.0, width=4):
        return build(input_shape, n_classes, dropout=dropout, width=2 * width)

    with folder(world) as where:
        said = told(world, where, mock.patch.object(tiny, "build", wider))
        assert "all nodes must have one model" in said
        assert said.count("psframe:") == 1


@ranks(2, 4)
def a_clock_that_is_minutes_off_is_told_and_no_more(world):
    cluster = apart(world, 2)
    late = mock.patch.object(alike.time, "time", lambda: 1e9 - 300)
    with late if cluster.node else mock.patch.object(alike.time, "time", lambda: 1e9):
        warnings = alike.late_clocks(cluster)
    assert bool(warnings) == (cluster.rank == 0)
    for warning in warnings:
        assert f"the clock of node 1 ({socket.gethostname()}) is 300 s behind" in warning
    assert not alike.late_clocks(cluster)


@ranks(2, 4)
def what_goes_wrong_on_one_node_names_its_host(world):
    cluster = apart(world, 2)

    def fails_on(nodes):
        def judge():
            if cluster.node in nodes:
                raise UserError("no room")

        return judge

    for agree in (cluster.agree_everywhere, cluster.agree_by_node):
        for nodes, wanted in (((1,), f"no room (on {cluster.hosts[1]})"), ((0, 1), "no room")):
            try:
                agree(fails_on(nodes))
            except AgreedError as error:
                assert str(error) == wanted, error
            else:
                raise AssertionError("it passed")


@ranks(2, 4)
def nodes_that_are_alike_train(world):
    with folder(world) as where:
        assert told(world, where, expect=0) == ""
