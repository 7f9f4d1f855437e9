"""Plans for the ranks of a machine: what they share, rooms of groups, rates; their account."""

import numpy as np
import pytest

from psframe.config.registry import load
from psframe.memory.allocator import Allocator, Home
from psframe.memory.arena import Arena, Vectors
from psframe.memory.auto import Reach
from psframe.memory.budget import Demand
from psframe.memory.by_tensor import ROLES
from psframe.memory.pages import Policy
from psframe.memory.tier_options import Window
from psframe.models import BUILT_IN
from psframe.nn.network import Network
from psframe.train import tier_places
from psframe.train.assembly.accesses import of_step
from psframe.train.assembly.sizes import Accesses, Sizes
from psframe.train.tier_places import RESERVE, Wish

PAGE = 4096
QUARTERS = {n: [Reach("hbw", (4 + n,), 100.0, "given"), Reach("ddr", (n, 3 - n), 25.0, "given")] for n in (0, 3)}


def wish(quarter, n_bytes, own=None, shared=None, fixed=(), most_mb=None):
    return Wish(QUARTERS[quarter], n_bytes, Accesses(own or {}, shared or {}), list(fixed), most_mb, False)


def test_all_ranks_accesses_to_shared_memory_count_where_its_pages_are():
    """Three workers read parameters that two of them place, a third and two thirds."""
    place, shared = "parameters/0.Dense.weight", {"parameters/0.Dense.weight": (900, 30)}
    wishes = [wish(0, {place: 1 * PAGE}, {place: (7, 7)}, shared), wish(3, {place: 2 * PAGE}, {}, shared)]
    wishes.append(wish(3, {"activations/input": PAGE}, {"activations/input": (5, 6)}, shared))
    first, second = ([w for w in wishes if w.group == wishes[k].group] for k in (0, 1))
    (item,) = tier_places._items(first, wishes)
    assert (item.place, item.n_bytes, item.read, item.written) == (place, PAGE, 7 + 900, 7 + 30)
    by_place = {item.place: item for item in tier_places._items(second, wishes)}
    assert by_place[place].read == 1800
    assert (by_place["activations/input"].read, by_place["activations/input"].written) == (5, 6)


def test_room_is_what_others_leave_and_groups_share():
    free = {(4, 0): 1000 * PAGE, (7, 0): 1000 * PAGE, (0, 0): 4000 * PAGE, (3, 0): 4000 * PAGE}
    taken = Demand("data", 200 * PAGE, Policy("bind", (4,)))
    wishes = [wish(0, {"exchange": 300 * PAGE}, fixed=[taken]), wish(3, {"exchange": 100 * PAGE})]
    plans = tier_places._plans(wishes, free)
    rooms = {key: [n_bytes for _, _, n_bytes in plan["tiers"]] for key, plan in plans.items()}
    kept = 1 - RESERVE
    assert rooms[wishes[0].group] == [int(800 * PAGE * kept), int(8000 * PAGE * kept * 0.75)]
    assert rooms[wishes[1].group] == [int(1000 * PAGE * kept), int(8000 * PAGE * kept * 0.25)]
    assert sum(n for _, n in rooms.values()) <= 8000 * PAGE


@pytest.mark.parametrize("most_mb", [0.5, 2])
def test_most_is_of_a_fast_node_also_for_several_groups(most_mb):
    reaches = [Reach("hbw", (4,), 100.0, "given")]
    wishes = [
        Wish([*reaches, Reach("ddr", nodes, 25.0, "given")], {"exchange": n}, Accesses(), [], most_mb, False)
        for nodes, n in (((0,), PAGE), ((1,), 3 * PAGE))
    ]
    plans = tier_places._plans(wishes, {(n, 0): 1 << 30 for n in (0, 1, 4)})
    assert len(plans) == 2
    assert sum(plan["tiers"][0][2] for plan in plans.values()) == pytest.approx(most_mb * 1e6, abs=2)


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_tensors_move_where_all_ranks_use_them_alike(n_ranks):
    early, late = "activations/0.Conv2d.kept", "activations/7.Conv2d.kept"
    n_bytes = {early: 512 * PAGE, late: 512 * PAGE}
    used = {early: Window(0, 1, 10), late: Window(5, 6, 10)}
    own = dict.fromkeys(n_bytes, (10**9, 10**9))
    worker = Wish(QUARTERS[0], n_bytes, Accesses(own), [], 2.2 * n_ranks, False, used, 2.0)
    server = Wish(QUARTERS[0], {}, Accesses(), [], 2.2 * n_ranks, False)
    free = {(n, 0): 1 << 30 for n in (0, 3, 4)}
    plan = tier_places._plans([worker] * n_ranks + [server], free)[worker.group]
    assert plan["moves"] == {early: "out", late: "in"}
    assert plan["chosen"] == {early: [1, 0], late: [0, 1]}
    told = [line.split("  ")[-1].strip() for line in tier_places.account(plan).splitlines() if "Conv2d" in line]
    assert told == ["hbw, in ddr between passes", "ddr, in hbw for its passes"]
    assert f"what moves does so at {2 * n_ranks} GB/s on all ranks together" in tier_places.account(plan)
    other = Wish(QUARTERS[0], n_bytes, Accesses(own), [], 2.2, False, {**used, late: Window(6, 7, 10)}, 2.0)
    plan = tier_places._plans([worker] * n_ranks + [other], free)[worker.group]
    assert plan["moves"] == {}
    assert "what moves" not in tier_places.account(plan)


def lenet(shared, **more):
    network = Network(load("model", BUILT_IN, "lenet")((1, 28, 28), 10), (1, 28, 28), 10)
    allocator = Allocator(homes={role: Home(by_tensor=True) for role in ROLES})
    arena = Arena(network.layout, 1, allocator)
    if shared:
        vectors = Vectors([arena.params, arena.params], arena.grads, [arena.state, arena.state])
        arena = Arena(network.layout, 1, allocator, vectors=vectors)
    network.bind(arena, 8, allocator, **more)
    return network, Sizes.of(allocator, 0).by_place


def test_step_accesses_parameters_gradients_and_state_as_often_as_they_are_used():
    network, sizes = lenet(shared=False)
    weight = "5.Dense.weight"
    n, size = 4 * int(np.prod(network.params[weight].shape)), sizes[f"parameters/{weight}"]
    accesses = of_step(network, 8, True, True, sizes).own
    assert accesses[f"parameters/{weight}"] == (2 * n + size, size)
    assert accesses[f"gradients/{weight}"] == (n, 2 * n)
    assert accesses[f"optimizer/{weight}"] == (size, size)
    worker = of_step(network, 8, True, False, sizes).own
    assert worker[f"parameters/{weight}"] == (2 * n, n)
    assert worker[f"optimizer/{weight}"] == (0, 0)
    server = of_step(network, 8, False, True, sizes).own
    assert server[f"gradients/{weight}"] == (0, 0)
    assert {accesses for place, accesses in server.items() if place.startswith("activations")} == {(0, 0)}
    thrice = of_step(network, 24, True, True, sizes).own
    assert thrice[f"gradients/{weight}"] == (3 * n, 4 * n)
    for place in ("activations/0.Conv2d.kept", "activations/input_gradients"):
        assert thrice[place] == tuple(3 * number for number in accesses[place])


@pytest.mark.parametrize(
    ("layer", "reads"),
    [
        ("0.Conv2d", 1.0),  # by the pooling, which goes back by the places of the largest numbers
        ("1.MaxPool2d", (2 * 4 + 1) / 5),  # by the convolution, forward and backward; these places, a byte each, once
        ("4.Flatten", 2.0),
        ("5.Dense", 3.0),  # by its own backward pass, too: it has a ReLU
        ("7.Dense", 1.0),
    ],
)
def test_step_reads_activations_as_often_as_layers_say(layer, reads):
    network, sizes = lenet(shared=False)
    place = f"activations/{layer}.kept"
    accesses = of_step(network, 8, True, True, sizes).own
    assert accesses[place] == (pytest.approx(reads * sizes[place]), sizes[place])


def test_workers_read_the_samples_of_a_step_in_memory_that_one_rank_has():
    network, sizes = lenet(shared=False)
    sizes = {**sizes, "data": 100 * PAGE}
    accesses = of_step(network, 8, True, True, sizes, 784)
    assert (accesses.own["data"], accesses.shared["data"]) == ((0, 0), (8 * 784, 0))
    assert "data" not in of_step(network, 8, False, True, sizes, 784).shared
    read = {"data": (6272, 0)}
    wishes = [wish(0, {"data": 100 * PAGE}, shared=read), wish(0, {"exchange": PAGE}, shared=read)]
    plan = tier_places._plans(wishes, {(n, 0): 1 << 30 for n in (0, 3, 4)})[wishes[0].group]
    assert ["data", 100 * PAGE, 2 * 6272, 0] in plan["items"]


def test_data_too_large_for_the_fastest_tier_have_a_part_there():
    n_bytes = 1024 * PAGE
    wishes = [wish(0, {"data": n_bytes}, shared={"data": (6272, 0)})]
    plan = tier_places._plans(wishes, {(0, 0): 1 << 30, (3, 0): 1 << 30, (4, 0): n_bytes // 2})[wishes[0].group]
    weights = plan["chosen"]["data"]
    assert 0 < weights[0] / sum(weights) <= 0.5


def test_workers_of_a_node_move_what_it_shares_and_its_owners_update_it():
    network, sizes = lenet(shared=True)
    weight = "5.Dense.weight"
    n, size = 4 * int(np.prod(network.params[weight].shape)), sizes[f"parameters/{weight}"]
    for applies in (True, False):
        accesses = of_step(network, 8, True, applies, sizes)
        assert accesses.shared[f"parameters/{weight}"] == (2 * n, 0)
        assert accesses.shared[f"gradients/{weight}"] == (n, n)
        assert accesses.own[f"parameters/{weight}"] == (size // 2, size // 2)


def test_account_tells_each_tensor_and_that_nothing_was_measured():
    wishes = [wish(0, {"parameters/0.Dense.weight": PAGE, "exchange": PAGE}, {"exchange": (50_000, 10)})]
    plan = tier_places._plans(wishes, {(n, 0): 1 << 20 for n in (0, 3, 4)})[wishes[0].group]
    told = tier_places.account(plan)
    assert "nothing of it was measured" in told
    assert "spilled" not in told
    assert "exchange was spilled to ordinary memory" in tier_places.account({**plan, "spilled": ["exchange"]})
    rows = {line.split()[0]: line.split() for line in told.splitlines()[2:4]}
    assert rows["parameters"][1:] == ["0.Dense.weight", "4,096", "0", "0", "ddr"]
    assert rows["exchange"][-4:] == ["4,096", "50,000", "10", "hbw"]
    assert "(integer program, optimal); all ddr 0.002, hbw while it lasts" in told
