"""Optimizers against PyTorch, and where it has none against the papers' algorithms in float64."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psframe.errors import UserError
from psframe.memory.allocator import Allocator
from psframe.memory.arena import Arena, Layout
from psframe.memory.checksums import Checksums
from psframe.nn.base import Param
from psframe.optim import LAMB, LARS, SGD, AdaGrad, Adam, AdamW, Lion, Updater

F = np.float32
SHAPES = {"0.Conv2d.weight": (4, 3, 5), "0.Conv2d.bias": (4,), "2.Dense.weight": (70, 40), "2.Dense.bias": (70,)}
LAYOUT = Layout({name: Param(shape, tuple(range(len(shape)))) for name, shape in SHAPES.items()})
SLOTS = LAYOUT.slots
N_STEPS = 25


def vector(*seed):
    """Return numbers of every tensor, and zeros between them."""
    found = np.zeros(LAYOUT.size, F)
    for slot in SLOTS.values():
        found[slot.start : slot.stop] = np.random.default_rng((*seed, slot.start)).standard_normal(
            slot.stop - slot.start
        )
    return found


def begun(optimizer):
    arena = Arena(LAYOUT, optimizer.n_state, Allocator())
    arena.params[:] = vector(1)
    return arena


def trained(optimizer, cuts=()):
    """Return parameters and state after N_STEPS updates, each in segments that end at ``cuts``."""
    arena = begun(optimizer)
    update = Updater(optimizer, arena)
    for step in range(1, N_STEPS + 1):
        gradient = vector(2, step)
        for start, stop in pairwise((0, *cuts, LAYOUT.size)):
            update(slice(start, stop), gradient[start:stop], optimizer.lr * step / N_STEPS, step)
    return arena.params, arena.state


def by_pytorch(optimizer, make, limit=lambda parameters: None):
    torch = pytest.importorskip("torch", reason="PyTorch, the reference, is not installed")
    parameters = [torch.nn.Parameter(torch.from_numpy(slot.view(vector(1)).copy())) for slot in SLOTS.values()]
    reference = make(torch, parameters)
    bases = [group["lr"] for group in reference.param_groups]
    for step in range(1, N_STEPS + 1):
        for parameter, slot in zip(parameters, SLOTS.values(), strict=True):
            parameter.grad = torch.from_numpy(slot.view(vector(2, step)).copy())
        limit(parameters)
        for group, base in zip(reference.param_groups, bases, strict=True):
            group["lr"] = base * step / N_STEPS
        reference.step()
    return [parameter.detach().numpy() for parameter in parameters]


def agree(optimizer, wanted):
    params = trained(optimizer)[0]
    for (name, slot), tensor in zip(SLOTS.items(), wanted, strict=True):
        np.testing.assert_allclose(slot.view(params), tensor, rtol=1e-5, atol=2e-6, err_msg=name)


ALL = [{"tensors": "*", "weight_decay": 0.1}]


@pytest.mark.parametrize(
    ("optimizer", "make"),
    [
        (
            AdamW(lr=0.01, weight_decay=0.1, groups=ALL),
            lambda torch, p: torch.optim.AdamW(p, 0.01, weight_decay=0.1),
        ),
        (
            AdamW(lr=0.01, weight_decay=0.1),
            lambda torch, p: torch.optim.AdamW(
                [{"params": p[::2]}, {"params": p[1::2], "weight_decay": 0.0}], 0.01, weight_decay=0.1
            ),
        ),
        (
            Adam(lr=0.01, weight_decay=0.1, groups=[{"tensors": "*.bias", "lr": 2.0, "weight_decay": 0.0}]),
            lambda torch, p: torch.optim.Adam(
                [{"params": p[::2]}, {"params": p[1::2], "lr": 0.02, "weight_decay": 0.0}], 0.01, weight_decay=0.1
            ),
        ),
        (
            SGD(lr=0.1, momentum=0.9, weight_decay=0.1, groups=[{"tensors": "2*", "lr": 0.5}]),
            lambda torch, p: torch.optim.SGD(
                [{"params": p[:2]}, {"params": p[2:], "lr": 0.05}], 0.1, momentum=0.9, weight_decay=0.1
            ),
        ),
        (AdaGrad(lr=0.1, weight_decay=0.1), lambda torch, p: torch.optim.Adagrad(p, 0.1, weight_decay=0.1)),
        (
            SGD(lr=0.1, weight_decay=0.1, decoupled=True),
            lambda torch, p: torch.optim.SGD(p, 0.1, weight_decay=0.1),
        ),
    ],
)
def test_optimizers_and_groups_agree_with_pytorch(optimizer, make):
    agree(optimizer, by_pytorch(optimizer, make))


@pytest.mark.parametrize("optimizer", [SGD(lr=0.1, momentum=0.9), Adam(lr=0.01)])
@pytest.mark.parametrize("limits", [{"clip_value": 0.5}, {"clip_norm": 0.7}, {"clip_value": 0.5, "clip_norm": 20.0}])
def test_clipping_agrees_with_pytorch(optimizer, limits):
    def make(torch, parameters):
        if isinstance(optimizer, SGD):
            return torch.optim.SGD(parameters, optimizer.lr, momentum=0.9)
        return torch.optim.Adam(parameters, optimizer.lr)

    def limit(parameters):
        from torch.nn import utils

        if "clip_value" in limits:
            utils.clip_grad_value_(parameters, limits["clip_value"])
        if "clip_norm" in limits:
            utils.clip_grad_norm_(parameters, limits["clip_norm"])

    keys = {"lr": optimizer.lr, **limits, **({"momentum": 0.9} if isinstance(optimizer, SGD) else {})}
    wanted = by_pytorch(optimizer, make, limit)
    agree(type(optimizer)(**keys), wanted)
    assert not np.allclose(wanted[0], by_pytorch(optimizer, make)[0]), "a limit that nothing reaches tests nothing"


def lion(o, w, g, m, v, lr, t, decay):
    """In float32 up to the sign, which the last bit of a number near 0 decides."""
    m, g = m.astype(F), g.astype(F)
    c = F(o.beta1) * m + (1 - F(o.beta1)) * g
    w -= lr * (np.sign(c) + decay * w)
    return F(o.beta2) * m + (1 - F(o.beta2)) * g


def sgdw(o, w, g, m, v, lr, t, decay):
    m[:] = o.momentum * m + g
    w -= lr * ((g + o.momentum * m if o.nesterov else m) + decay * w)


def lars(o, w, g, m, v, lr, t, decay):
    norm, of_g = np.linalg.norm(w), np.linalg.norm(g)
    ratio = o.trust * norm / (of_g + decay * norm + o.eps) if norm and of_g else 1.0
    m[:] = o.momentum * m + lr * ratio * (g + decay * w)
    w -= m


def lamb(o, w, g, m, v, lr, t, decay):
    m[:] = o.beta1 * m + (1 - o.beta1) * g
    v[:] = o.beta2 * v + (1 - o.beta2) * g * g
    r = m / (1 - o.beta1**t) / (np.sqrt(v / (1 - o.beta2**t)) + o.eps) + decay * w
    norm, of_r = np.linalg.norm(w), np.linalg.norm(r)
    w -= lr * (min(norm, o.clamp) / of_r if norm and of_r else 1.0) * r


PAPERS = [
    (Lion(lr=0.01, weight_decay=0.1), lion),
    (SGD(lr=0.1, momentum=0.9, weight_decay=0.1, decoupled=True), sgdw),
    (SGD(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1, decoupled=True), sgdw),
    (LARS(lr=10.0, weight_decay=0.1), lars),
    (LARS(lr=2.0, momentum=0.0, trust=0.02, eps=1e-3), lars),
    (LAMB(lr=0.02, weight_decay=0.1), lamb),
    (LAMB(lr=0.02, weight_decay=0.1, clamp=3.0, groups=ALL), lamb),
]


@pytest.mark.parametrize(("optimizer", "rule"), PAPERS)
def test_optimizers_agree_with_the_papers_in_float64(optimizer, rule):
    wanted = []
    for name, slot in SLOTS.items():
        w = slot.view(vector(1)).astype(np.float64)
        m, v = np.zeros_like(w), np.zeros_like(w)
        decays = optimizer.decays_vectors or optimizer.groups or w.ndim > 1
        for t in range(1, N_STEPS + 1):
            g = slot.view(vector(2, t)).astype(np.float64)
            kept = rule(optimizer, w, g, m, v, optimizer.lr * t / N_STEPS, t, optimizer.weight_decay if decays else 0.0)
            m = m if kept is None else kept
        wanted.append(w)
        assert not np.allclose(w, slot.view(vector(1)), atol=1e-3), name
    agree(optimizer, wanted)


@pytest.mark.parametrize("optimizer", [LARS(lr=1.0), LAMB(lr=0.1)])
def test_tensor_of_zeros_moves_at_the_learning_rate_itself(optimizer):
    w, g, state = np.zeros(40, F), np.ones(40, F), np.zeros((optimizer.n_state, 40), F)
    optimizer.update(w, g, state, optimizer.lr, 1)
    np.testing.assert_allclose(w, -optimizer.lr, rtol=1e-4)
    w, state = np.ones(40, F), np.zeros_like(state)
    optimizer.update(w, np.zeros(40, F), state, optimizer.lr, 1)
    np.testing.assert_array_equal(w, 1)


class OwnByTensor:
    """A user's own optimizer, which normalizes the gradient of each tensor, or of all of them."""

    lr, n_state = 0.1, 1

    def __init__(self, cuts):
        self.cuts = cuts

    def update(self, params, grads, state, lr, step):
        state[0] = F(0.9) * state[0] + grads / F(np.linalg.norm(grads))
        params -= F(lr) * state[0]


@pytest.mark.parametrize("cuts", ["tensors", "nowhere"])
def test_optimizer_of_ones_own_is_given_whole_tensors(cuts):
    extent = LAYOUT.extent(cuts)
    params, state = trained(OwnByTensor(cuts), extent.places[1:-1])
    pieces = [(0, LAYOUT.size)] if cuts == "nowhere" else [(slot.start, slot.stop) for slot in SLOTS.values()]
    wanted, rows = vector(1), np.zeros_like(state)
    for step in range(1, N_STEPS + 1):
        for start, stop in pieces:
            part, lr = slice(start, stop), 0.1 * step / N_STEPS
            OwnByTensor(cuts).update(wanted[part], vector(2, step)[part], rows[:, part], lr, step)
    np.testing.assert_array_equal(params, wanted)
    np.testing.assert_array_equal(state, rows)


WHOLE = [LARS(lr=10.0, weight_decay=0.1), LAMB(lr=0.02, weight_decay=0.1, clip_value=0.5)]
EVERYWHERE = [
    AdamW(lr=0.01, weight_decay=0.1),
    Lion(lr=0.01, weight_decay=0.1, groups=[{"tensors": "*bias", "lr": 3.0, "weight_decay": 0.2}]),
    SGD(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1, decoupled=True, clip_value=0.5),
]


@given(st.sampled_from(WHOLE + EVERYWHERE), st.data())
def test_any_allowed_cut_ends_in_the_bits_of_none(optimizer, data):
    extent = LAYOUT.extent(optimizer.cuts)
    places = st.sampled_from(extent.places) if extent.places is not None else st.integers(0, LAYOUT.size)
    cuts = sorted(data.draw(st.lists(places, max_size=4)))
    for got, wanted in zip(trained(optimizer, cuts), trained(optimizer), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(("optimizer", "cuts"), [(WHOLE[0], (10,)), (WHOLE[1], (64, 200)), (SGD(clip_norm=1.0), (64,))])
def test_cut_through_what_is_needed_whole_is_told(optimizer, cuts):
    with pytest.raises(UserError, match=r"must not cut what .* needs whole, got numbers .* without all of [02]\."):
        trained(optimizer, cuts)


@pytest.mark.parametrize("optimizer", [*WHOLE, *EVERYWHERE, SGD(lr=0.1, momentum=0.9, clip_norm=0.5)])
@pytest.mark.parametrize("n_copies", [1, 2])
def test_statistics_gaps_checksums_and_bfloat16_are_those_of_every_update(optimizer, n_copies):
    """Statistics are changed by the mean itself; gaps stay as they are; a changed number is noticed."""
    from psframe.memory.arena import Keeping
    from tests.helpers.bfloat16_model import rounded

    tensors = {name: Param(slot.shape, slot.order) for name, slot in SLOTS.items()}
    layout = Layout({**tensors, "mean": Param((33,), (0,), trained=False)})
    arena = Arena(layout, optimizer.n_state, Allocator(), keeping=Keeping(n_copies, bfloat16=True))
    arena.params[: LAYOUT.size], arena.params[LAYOUT.size : LAYOUT.size + 33] = vector(1), 7.0
    sums = Checksums(arena)
    update, plain = Updater(optimizer, arena, sums), trained_once(optimizer)
    gradient = np.zeros(layout.size, F)
    gradient[: LAYOUT.size], gradient[LAYOUT.size : LAYOUT.size + 33] = vector(2, 1), 2.0
    update(slice(0, layout.size), gradient, optimizer.lr, 1)
    arena.commit()
    np.testing.assert_array_equal(arena.params[: LAYOUT.size], plain)
    np.testing.assert_array_equal(arena.params[LAYOUT.size : LAYOUT.size + 33], 5.0)
    np.testing.assert_array_equal(arena.params_bf16, rounded(arena.params))
    assert not any(arena.params[gap].any() for gap in layout.gaps())
    assert sums.hold()
    arena.params.view(np.uint32)[100] ^= 1 << 7
    assert not sums.hold()
    update(slice(0, layout.size), gradient, optimizer.lr, 2)
    assert update.take_damage()


def trained_once(optimizer):
    arena = begun(optimizer)
    Updater(optimizer, arena)(slice(0, LAYOUT.size), vector(2, 1), optimizer.lr, 1)
    return arena.params


@pytest.mark.parametrize("optimizer", [*WHOLE, SGD(clip_norm=1.0), SGD(clip_value=1.0)])
def test_gradient_that_is_not_finite_is_noticed(optimizer):
    update, gradient = Updater(optimizer, begun(optimizer)), vector(2, 1)
    update(slice(0, LAYOUT.size), gradient, 0.1, 1)
    assert update.first_nonfinite_step == 0
    gradient[SLOTS["2.Dense.weight"].start + 2100] = np.inf
    update(slice(0, LAYOUT.size), gradient, 0.1, 2)
    assert update.first_nonfinite_step == 2
