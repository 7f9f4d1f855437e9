"""Learning rates by their definitions."""

from math import cos, pi

import pytest

from psframe.config.schema import Average, Schedule
from psframe.train.schedule import falls_to_the_end, learning_rate


def rates(schedule, epochs, n_steps, global_batch=256, base_lr=0.1):
    return [
        learning_rate(schedule, base_lr, epochs, global_batch, i / n_steps, (i + 1) / n_steps)
        for i in range(epochs * n_steps)
    ]


def test_constant_rate():
    assert set(rates(Schedule(), 3, 4)) == {0.1}


def test_step_rate():
    found = rates(Schedule(name="step", step_epochs=2, gamma=0.5), 5, 2)
    assert found == pytest.approx([0.1] * 4 + [0.05] * 4 + [0.025] * 2)


def test_cosine_begins_at_the_rate_and_ends_near_0():
    found = rates(Schedule(name="cosine"), 2, 4)
    assert found == pytest.approx([0.05 * (1 + cos(pi * i / 8)) for i in range(8)])


def test_scaling_is_linear_and_warm_up_gradual():
    """Goyal et al. 2017: from lr to k lr during the first epochs, in equal steps; then k lr."""
    found = rates(Schedule(warmup_epochs=2, base_batch=64), 3, 4)
    assert found == pytest.approx([0.1 + 0.3 * (i + 1) / 8 for i in range(8)] + [0.4] * 4)


def test_warm_up_without_scaling_begins_at_0():
    assert rates(Schedule(warmup_epochs=1), 2, 4) == pytest.approx([0.025, 0.05, 0.075, 0.1] + [0.1] * 4)


def test_warm_up_of_part_of_an_epoch():
    found = rates(Schedule(warmup_epochs=0.3), 1, 4)
    assert found == pytest.approx([0.1 * 0.25 / 0.3, 0.1, 0.1, 0.1])


def test_cosine_begins_after_the_warm_up():
    found = rates(Schedule(name="cosine", warmup_epochs=1), 3, 2)
    assert found == pytest.approx([0.05, 0.1] + [0.05 * (1 + cos(pi * i / 4)) for i in range(4)])


@pytest.mark.parametrize("warmup", [k / 10 for k in range(1, 20)])
@pytest.mark.parametrize("factor", [1, 2, 3])
def test_restart_behind_part_of_an_epoch_is_not_late(warmup, factor):
    schedule = Schedule(name="cosine", restart_epochs=2, restart_factor=factor, warmup_epochs=warmup)
    found = rates(schedule, 12, 10)
    first = round(10 * (warmup + 2))
    assert found[first] == pytest.approx(0.1)
    assert min(found[round(10 * warmup) :]) > 1e-6


def by_pytorch(make, n, base_lr=0.1):
    torch = pytest.importorskip("torch", reason="PyTorch, the reference, is not installed")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], base_lr)
    scheduler, found = make(torch.optim.lr_scheduler, optimizer), []
    for _ in range(n):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step() if len(found) < n else None
    return found


@pytest.mark.parametrize(("epochs", "n_steps"), [(1, 10), (3, 7), (10, 4)])
@pytest.mark.parametrize(
    ("schedule", "make"),
    [
        (Schedule(name="polynomial"), lambda s, o, n, of_epoch: s.PolynomialLR(o, n)),
        (Schedule(name="polynomial", power=2.5), lambda s, o, n, of_epoch: s.PolynomialLR(o, n, 2.5)),
        (Schedule(name="polynomial", end=0.1), lambda s, o, n, of_epoch: s.LinearLR(o, 1, 0.1, n)),
        (Schedule(name="cosine", end=0.2), lambda s, o, n, of_epoch: s.CosineAnnealingLR(o, n, 0.02)),
        (
            Schedule(name="cosine", restart_epochs=2),
            lambda s, o, n, of_epoch: s.CosineAnnealingWarmRestarts(o, 2 * of_epoch),
        ),
        (
            Schedule(name="cosine", restart_epochs=1, restart_factor=2, end=0.1),
            lambda s, o, n, of_epoch: s.CosineAnnealingWarmRestarts(o, of_epoch, 2, 0.01),
        ),
        (Schedule(name="one_cycle", end=4e-6), lambda s, o, n, of_epoch: s.OneCycleLR(o, 0.1, n)),
        (
            Schedule(name="one_cycle", start=0.2, rise=0.45, end=0.02),
            lambda s, o, n, of_epoch: s.OneCycleLR(o, 0.1, n, pct_start=0.45, div_factor=5, final_div_factor=10),
        ),
    ],
)
def test_schedules_are_those_of_pytorch_step_by_step(schedule, make, epochs, n_steps):
    n = epochs * n_steps
    found = rates(schedule, epochs, n_steps)
    wanted = by_pytorch(lambda schedulers, optimizer: make(schedulers, optimizer, n, n_steps), n)
    assert found == pytest.approx(wanted, rel=1e-9, abs=1e-12)
    assert len({round(rate, 9) for rate in found}) > 3


def test_schedule_after_a_warm_up_is_that_of_the_epochs_left():
    for keys in ({"name": "polynomial", "power": 2.0}, {"name": "cosine", "restart_epochs": 1}):
        found = rates(Schedule(warmup_epochs=2, **keys), 5, 4)
        assert found[8:] == pytest.approx(rates(Schedule(**keys), 3, 4))


def test_schedules_that_end_with_the_run_are_known():
    assert [falls_to_the_end(Schedule(name=n)) for n in ("constant", "step", "cosine", "polynomial", "one_cycle")] == [
        False,
        False,
        True,
        True,
        True,
    ]
    assert not falls_to_the_end(Schedule(name="cosine", restart_epochs=3))
    assert (
        rates(Schedule(name="cosine", restart_epochs=1), 2, 4)
        == rates(Schedule(name="cosine", restart_epochs=1), 9, 4)[:8]
    )


@pytest.mark.parametrize(
    ("keys", "unused"),
    [
        ({"step_epochs": 30, "gamma": 0.5}, ["step_epochs", "gamma"]),
        ({"name": "step", "step_epochs": 30, "end": 0.1}, ["end"]),
        ({"name": "cosine", "end": 0.1, "restart_epochs": 2, "warmup_epochs": 1, "base_batch": 8}, []),
        ({"name": "one_cycle", "power": 2.0, "rise": 0.5}, ["power"]),
    ],
)
def test_keys_that_a_schedule_does_not_use_are_told(keys, unused):
    assert Schedule(**keys).unused() == [f"schedule.{key}" for key in unused]


def test_keys_that_an_average_does_not_use_are_told():
    assert Average(decay=0.9, begin_step=3).unused() == ["average.decay", "average.begin_step"]
    assert Average(name="swa", decay=0.9, begin_step=3).unused() == ["average.decay"]
    assert Average(name="ema", decay=0.9, every_steps=3).unused() == []
