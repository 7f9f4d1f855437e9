"""Memory that virtual ranks share, or have in turn, changes no bit."""

import gc
import weakref

import pytest

from psframe.predict import machine
from psframe.predict.exchange import Node
from psframe.record import metrics
from psframe.virtual import loans, pages
from psframe.virtual.costs import Costs, Premises
from psframe.virtual.training import Simulation, simulated
from tests.ranks.training import TINY

N, LINK = 4, machine.link("10")
#: gradients of some pages; small ones are no matter
LARGE = ("dataset={name: synthetic, shape: [2, 96, 96], classes: 5, samples: 61}", "train.batch_size=4")
MODES = (
    "sync=async_ps",
    "sync={mode: async_ps, staleness: 1}",
    "sync={mode: async_ps, pull_every: 2, push_every: 2}",
    "sync={mode: sync_ps, backup_workers: 1}",
    "sync=sync_ps",
)
WAITING = (MODES[1], MODES[3])


def ended(folder, sync, n_nodes, dies_s=None):
    """Return the last record of a simulation, and its run."""
    (folder / "config.yaml").write_text(TINY)
    node = Node(machine.read("knl-7250-mcdram"), N // n_nodes)
    node_of = [rank * n_nodes // N for rank in range(N)]
    premises = Premises(node_of, lambda n, batch: 0.01 * n / batch, 0.05, node, LINK, dies_s=dies_s or {})
    keys = [*LARGE, sync, f"record.dir={folder / 'runs'}", *(["fault.on_worker_loss=continue"] if dies_s else [])]
    run = simulated(Simulation(str(folder / "config.yaml"), keys, premises, "tested"), Costs(premises))
    return metrics.read(run.outputs.run_dir.path)[-1], run


@pytest.mark.parametrize("n_nodes", [1, 2])
@pytest.mark.parametrize("sync", MODES)
def test_runs_end_in_the_bits_of_those_whose_ranks_have_all_for_themselves(tmp_path, monkeypatch, sync, n_nodes):
    (tmp_path / "spared").mkdir()
    (tmp_path / "own").mkdir()
    lent, take = [], loans.Loans.take
    monkeypatch.setattr(loans.Loans, "take", lambda self, memory: (take(self, memory), lent.append(len(self._lent))))
    spared, _ = ended(tmp_path / "spared", sync, n_nodes)
    is_in_mailbox = n_nodes == 1 and sync in WAITING  # where gradients are computed, in the server's memory
    assert bool(lent) == (sync != "sync=sync_ps" and not is_in_mailbox)
    monkeypatch.setattr(pages, "LEAST", 1 << 40)
    monkeypatch.setattr(loans, "LEAST", 1 << 40)
    own, _ = ended(tmp_path / "own", sync, n_nodes)
    assert spared["params_sha256"] == own["params_sha256"]
    assert spared["epoch_s"] == own["epoch_s"]


def test_memory_of_a_run_goes_when_ranks_go_on_without_one(tmp_path, monkeypatch):
    seen, share = [], pages.Common.share

    def shares(self, number, memory):
        seen.append(weakref.ref(memory))
        return share(self, number, memory)

    monkeypatch.setattr(pages.Common, "share", shares)
    monkeypatch.setattr(gc, "collect", lambda *_: 0)  # which finds nothing that older ranks have made
    _, run = ended(tmp_path, "sync=async_ps", 1, {2: 0.05})
    assert len(seen) == N + N - 1
    kept = [memory() is not None for memory in seen]
    assert not any(kept[:N]), "memory of before the loss"
    assert run
