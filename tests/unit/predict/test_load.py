"""What else runs on a machine is no part of what psframe.predict finds there; and it is told."""

from dataclasses import replace
from time import perf_counter, thread_time

import msgspec
import numpy as np
import pytest

from psframe.nn import timed
from psframe.predict import command, load, machine, measure, steps, view
from psframe.predict.load import Load, Reading
from psframe.predict.paces import predicted
from tests.helpers.predictions import job, way, work

#: of two CPUs: one that is busy, half of it for this user; and one that idles. The first line adds them up
STAT = """\
cpu  300 0 100 1000 0 0 0 40 0 0
cpu0 250 10 90 150 0 5 5 40 0 0
cpu1 50 0 10 850 0 0 0 0 0 0
intr 1 2 3
ctxt 99
"""


def test_ticks_of_the_kernel_are_read():
    assert load.parsed(STAT) == {0: (360, 40), 1: (60, 0)}


@pytest.mark.parametrize("text", ["", "cpu0 1 2 3\n", "cpu0 a b c d e f g h\n", "\n\ncpu\n", "cpux 1 2 3 4 5 6 7 8\n"])
def test_ticks_that_the_kernel_does_not_tell_are_left_out(text):
    assert load.parsed(text) == {}


def test_reading_of_this_process():
    found = load.reading()
    assert found.cpus
    assert found.own_s > 0


def read(at_s, own_s, **ticks):
    return Reading(at_s, own_s, frozenset({0, 1}), {int(cpu[1:]): of for cpu, of in ticks.items()})


def test_load_of_others_is_what_is_busy_and_no_rank():
    """Two ranks on two CPUs for 10 s, which took 8 and 5 s of the 18 that were busy; one was stolen."""
    before = [read(0.0, 1.0, c0=(100, 0), c1=(50, 0)), read(0.0, 2.0, c0=(100, 0), c1=(50, 0))]
    after = [read(10.0, 9.0, c0=(1100, 40), c1=(850, 60)), read(10.0, 7.0, c0=(1100, 40), c1=(850, 60))]
    found = load.between(before, after, 0.25, hertz=100)
    assert found.taken == 0.25
    assert found.others == pytest.approx(5 / 20)
    assert found.stolen == pytest.approx(1 / 20)


def test_cpus_on_which_no_rank_may_run_do_not_count():
    before, after = (
        [replace(read(at, own, c0=(0, 0), c1=(busy, 0)), cpus=frozenset({0}))]
        for at, own, busy in ((0, 0, 0), (9, 0, 900))
    )
    assert load.between(before, after, hertz=100) == Load()


def test_clocks_of_ranks_tell_where_the_kernel_does_not():
    assert load.between([read(0.0, 0.0)], [read(5.0, 1.0)], 0.5) == Load(0.5)


def test_idle_machine_is_no_load():
    assert not Load(0.02, 0.01, 0.0).seen
    assert Load(0.02, 0.01, 0.0).told == ""
    for key in ("taken", "others", "stolen"):
        assert Load(**{key: 0.5}).seen
        assert "50%" in Load(**{key: 0.5}).told


def test_load_at_its_worst_counts():
    assert Load(0.1, 0.2, 0.3) | Load(0.3, 0.2, 0.1) == Load(0.3, 0.2, 0.3)


QUIET = [[1e-3 + 1e-5 * (i % 5) for i in range(100)] for _ in range(2)]


def test_steps_that_were_disturbed_change_nothing():
    """A fifth of the steps took thirty times as long."""
    disturbed = [[s * (30 if i % 5 == 2 else 1) for i, s in enumerate(of)] for of in QUIET]
    for clock in (thread_time, perf_counter):
        quiet, found = (steps.figures(of, clock) for of in (QUIET, disturbed))
        assert found["step_s"] == pytest.approx(quiet["step_s"], rel=0.02)
        assert found["deviation"] == pytest.approx(quiet["deviation"], abs=0.02)


def test_threads_that_wait_are_timed_by_their_faster_steps():
    """Of steps on the wall, half are disturbed."""
    disturbed = [[s * (3 if i % 2 else 1) for i, s in enumerate(of)] for of in QUIET]
    assert steps.figures(disturbed, perf_counter)["step_s"] == pytest.approx(1e-3, rel=0.05)


def test_deviation_is_that_of_normal_numbers():
    numbers = np.random.default_rng(0).normal(1.0, 0.03, 20_000).tolist()
    assert steps.figures([numbers], thread_time)["deviation"] == pytest.approx(0.03, rel=0.05)


def test_layers_that_were_disturbed_change_nothing():
    rows = [[{"forward": 1.0, "backward": 2.0}, {"forward": 3.0, "backward": 4.0}] for _ in range(10)]
    rows[3] = [dict.fromkeys(rows[0][0], 50.0)] * 2
    assert steps.mean([steps.of_layers(rows, thread_time)] * 2) == rows[0]


@pytest.mark.parametrize(("wall_s", "own_s", "share"), [(2.0, 1.0, 0.5), (2.0, 2.0, 0.0), (2.0, 2.001, 0.0)])
def test_time_without_a_core_was_taken(wall_s, own_s, share):
    assert steps.taken(wall_s, own_s) == share


def test_steps_go_by_the_clock_that_they_are_given():
    """A clock that goes on by 1 where a step is taken, whatever the wall says."""
    now = [0.0]

    def step():
        now[0] += 1.0

    seconds, told, taken = steps.timed(step, lambda: ["layer"], lambda: now[0], 0.0, 5)
    assert (seconds, told, taken) == ([1.0] * 4, [["layer"]] * 4, 0.0)


def test_layers_go_by_the_clock_that_they_are_given():
    heard, now = [], iter((5.0, 6.0))
    layer = timed.Timed(type("Twice", (), {"forward": lambda self, x, state: 2 * x})(), lambda *a: heard.append(a),
                        lambda: next(now))  # fmt: skip
    assert layer.forward(3, None) == 6
    assert heard == [("forward", 5.0)]


@pytest.mark.parametrize(("beside_s", "alone"), [(0.0, True), (0.1, True), (0.5, False), (3.0, False)])
def test_thread_that_computes_alone_is_seen(beside_s, alone, monkeypatch):
    """By clocks that go on where a step is taken: of this thread, and of all that compute beside it, too."""
    taken = []
    monkeypatch.setattr(steps, "thread_time", lambda: float(len(taken)))
    monkeypatch.setattr(steps, "process_time", lambda: (1 + beside_s) * len(taken))
    assert steps.is_alone(lambda: taken.append("step"), 20) == alone
    assert len(taken) == 20


def reported(taken, cpu_time=True):
    """What ranks report of :func:`tests.helpers.predictions.work`."""
    made = work()
    layers = [
        {"layer": layer.name, "seconds": layer.seconds, "outputs": layer.outputs, "params": layer.params,
         "full": {d: {"flops": layer.flops[d], "bytes": layer.bytes[d]} for d in layer.flops}}
        for layer in made.layers
    ]  # fmt: skip
    plain = {key: getattr(made, key) for key in made.__dataclass_fields__ if key != "layers"}
    return {**plain, "layers": layers, "cpu_time": cpu_time, "load": {"taken": taken, "others": 0.0, "stolen": 0.0}}


def test_ranks_that_share_a_core_are_no_load():
    found, report = measure.with_turns(reported(0.5), 2.0)
    assert found.step_s == pytest.approx([2 * s for s in work().step_s])
    assert not report["load"].seen
    _, beside = measure.with_turns(reported(0.7), 2.0)  # and a third process there
    assert beside["load"].taken == pytest.approx(0.4)


def test_turns_on_the_wall_are_not_counted_again():
    """A rank of several threads goes by the wall's clock, which goes on while others have the core."""
    found, report = measure.with_turns(reported(0.3, cpu_time=False), 2.0)
    assert found.step_s == work().step_s
    assert report["load"].taken == pytest.approx(0.3)


def test_lateness_measured_here_is_not_another_machines():
    still, late = (predicted(job(work=work(deviation=d)), way(ranks=64)) for d in (0.0, 0.7))
    assert still == late
    assert late.wait_s == 0
    still, late = (predicted(job(work=work(deviation=d), here=True), way(ranks=64)) for d in (0.0, 0.7))
    assert late.wait_s > still.wait_s == 0


def asked(seen, profile_load="", here=False):
    mine = msgspec.structs.replace(machine.read("knl-7250-mcdram"), load=profile_load)
    found = job(machine=mine, here=here)
    own = {"mode": "allreduce", "server": None, "n_servers": 1, "reproducible": "none"}
    return command.Asked("c.yaml", "m", [], ["mpirun"], found, [2], own, "shared", 68, seen)


LOADED = Load(0.58, 0.5, 0.0)


def test_load_is_told_on_stderr_in_a_sentence(capsys):
    command.warn(Load(0.01, 0.01, 0.0), asked(load.NONE).job.machine)
    assert capsys.readouterr().err == ""
    command.warn(LOADED, asked(load.NONE).job.machine)
    told = capsys.readouterr().err
    assert told.startswith("psframe: warning: this machine must be idle")
    assert "58%" in told
    assert "50%" in told
    assert told.count("\n") == 1
    command.warn(load.NONE, asked(load.NONE, LOADED.told).job.machine)
    told = capsys.readouterr().err
    assert "profile" in told
    assert "58%" in told


def test_load_is_told_beside_the_figures():
    quiet, loaded = (view.plain(asked(seen), []) for seen in (load.NONE, LOADED))
    assert quiet["load"] == {"taken": 0.0, "others": 0.0, "stolen": 0.0, "seen": False}
    assert loaded["load"] == {"taken": 0.58, "others": 0.5, "stolen": 0.0, "seen": True}
    assert view.plain(asked(load.NONE, "busy"), [])["profile_load"] == "busy"
    assert "beside other work on this machine" in " ".join(view._caveats(asked(LOADED)))
    assert "profile was measured beside" in " ".join(view._caveats(asked(load.NONE, "busy")))
    assert view._caveats(asked(load.NONE, here=True)) == []


def test_profile_keeps_the_load_that_it_was_measured_under(monkeypatch, tmp_path):
    figures = dict.fromkeys((*machine.FIGURES, "gbps"), 1.0)
    taken = iter([0.0, 0.0, 0.6, *[0.0] * 20])

    def ranks(start, n, what, *arguments):
        row = {"method": "allreduce shared", "ranks": n, "bytes": 1000, "seconds": 1e-3}
        beside = {"taken": 0.0, "others": next(taken), "stolen": 0.0}
        return {**figures, "mpi": "MPI 1", "exchanges": [row], "load": beside}

    monkeypatch.setattr(measure, "_ranks", ranks)
    found = measure.machine(["mpirun"], lambda what: None)
    machine.write(str(tmp_path / "m.yaml"), found)
    assert "60%" in machine.read(str(tmp_path / "m.yaml")).load
