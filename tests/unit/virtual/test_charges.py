"""What ranks of a simulation are charged for, once: their own work, by the machine that is simulated."""

import pytest

from psframe.predict import machine
from psframe.predict.exchange import CROSSINGS, Node
from psframe.record import metrics
from psframe.record.traffic import Traffic
from psframe.virtual import gates
from psframe.virtual.costs import Costs, Premises
from psframe.virtual.training import Simulation, simulated
from tests.ranks.training import TINY

LINK, MACHINE = machine.link("10"), machine.read("knl-7250-mcdram")
STEPS = 4
KEYS = ("dataset={name: synthetic, shape: [2, 96, 96], classes: 5, samples: 16}", "train.epochs=1")
MOMENTUM = "optimizer={name: sgd, momentum: 0.5}"


def ended(folder, *keys, n=4):
    """Return the record of a simulation whose computations take no time, and its run."""
    (folder / "config.yaml").write_text(TINY)
    premises = Premises([0] * n, lambda *_: 0.0, 0.0, Node(MACHINE, n), LINK)
    keys = (*KEYS, f"train.batch_size={16 // STEPS // n}", *keys, f"record.dir={folder / 'runs'}")
    run = simulated(Simulation(str(folder / "config.yaml"), keys, premises, "tested"), Costs(premises))
    (record,) = metrics.read(run.outputs.run_dir.path)
    return record, run


def test_bytes_that_messages_pass_on_are_not_charged_again():
    costs, traffic = Costs(Premises([0], lambda *_: 0.0, 0.0, Node(MACHINE, 1), LINK)), Traffic()
    costs.meter(0, [traffic], 1)

    def body(number):
        traffic.broadcast(1 << 24, 64, is_root=True)
        traffic.allreduce(1 << 24, 64)
        traffic.transfer(1 << 24)
        costs.ranks.point()
        passed_s = costs.ranks.now_s
        traffic.sum(1 << 24, 2)
        costs.ranks.point()
        return passed_s, costs.ranks.now_s

    ((passed_s, summed_s),) = costs.ranks.run(body)
    assert passed_s == 0
    assert summed_s > 0


@pytest.mark.parametrize("sync", ["{mode: local_sgd, every: 99}", "{mode: easgd, period: 99}"])
def test_updates_of_parameters_that_are_a_rank_s_alone_take_their_time(tmp_path, sync):
    record, run = ended(tmp_path, f"sync={sync}", MOMENTUM)
    moved = STEPS * 5 * run.network.arena.layout.size * 4  # gradients, parameters and momentum are read, two written
    assert record["epoch_s"] >= 0.99 * moved * Node(MACHINE, 4).add_s(1.0, 4) / CROSSINGS


@pytest.mark.parametrize("here", [1, 2, 64])
def test_cores_are_those_of_the_machine_that_is_simulated(tmp_path, monkeypatch, here):
    made = []
    monkeypatch.setattr("psframe.cluster.affinity.n_cores", lambda *_: here)
    begun = gates.VirtualRendezvous.configure
    monkeypatch.setattr(
        gates.VirtualRendezvous, "configure", lambda self, *given: (begun(self, *given), made.append(self.n_cores))[0]
    )
    ended(tmp_path, "sync=allreduce")
    assert set(made) == {4}
