"""Metrics of whole runs: those of one process with the same parameters, whatever the mode, the ranks and the cut."""

import numpy as np
from mpi4py import MPI

from psframe import metrics
from psframe.nn.base import Pass
from tests.ranks.harness import ranks
from tests.ranks.training import begun, folder, train

OWN = "tests.helpers.own_metrics"
SPECS = ["top_3", *(name for name in metrics.TABLE if name != "top_k"), f"{OWN}:MeanMargin"]
ASKED = f"record.metrics=[{', '.join(SPECS)}]".replace(f"{OWN}:MeanMargin", f"'{OWN}:MeanMargin'")
COUNTS = ("top_3", "confusion")
KEYS = (ASKED, "nn.kernels=blas", "train.epochs=2")
ANY = ("train.reproducible=any_workers", "train.global_batch=24", "sync.mode=allreduce")
SMALL = "dataset.samples=30"  # with 6 test samples: fewer than there may be ranks

MODES = (
    ("sync.server=dedicated",),
    ("sync.server=colocated", SMALL),
    ANY,
    ("sync.mode=hogwild", SMALL),
    ("sync={mode: easgd, period: 2}",),
)
CUTS = ("{pipeline: 2}", "{model: 2}", "{model: 2, convolutions: data}", "{micro_batches: 3}")


def of_one_process(where, folder_of_run, keys):
    """Return the metrics of the test set with a run's last parameters, by one rank and in one array."""
    run = begun(MPI.COMM_SELF, where, *keys, "parallel={}", f"checkpoint.resume={folder_of_run}")
    run_logits, run_labels = [], []
    for sample in range(run.facts.n_test):
        x, labels = run.batches.load("test", np.array([sample]))
        run_logits.append(run.network.forward(x, Pass()).copy())
        run_labels.append(labels.copy())
    return metrics.compute(SPECS, np.concatenate(run_logits), np.concatenate(run_labels))


def flat(value):
    return [number for item in value for number in flat(item)] if isinstance(value, list) else [value]


def agree(mine, other, tolerance):
    """Return whether metrics are equal: counts exactly, and others to a tolerance."""
    return list(mine) == list(other) and all(
        mine[label] == other[label]
        if label in COUNTS
        else np.allclose(flat(mine[label]), flat(other[label]), rtol=tolerance, atol=tolerance)
        for label in mine
    )


def check(world, n_ranks, keys):
    """Train, and compare the last record's metrics with those of one process, and with what else the record has."""
    with folder(world) as where:
        records, _, run = train(world, n_ranks, where, *KEYS, *keys)
        last = records[-1]
        expected = of_one_process(where, run, [*KEYS, *keys]) if world.rank == 0 else None
        expected = world.bcast(expected)
        # products of float32 may be summed in another order with other batches, and with shards
        assert agree(last["metrics"], expected, 1e-5), (keys, last["metrics"], expected)
        counts = np.array(last["metrics"]["confusion"])
        n_test = 6 if SMALL in keys else 40
        assert counts.sum() == n_test, f"each sample counts once: {keys}"
        assert np.isclose(counts.trace() / n_test, last["accuracy"], rtol=1e-12)
        assert np.isclose(last["metrics"]["log_loss"], last["test_loss"], rtol=1e-9)


@ranks(3, 4, 7)
def metrics_are_those_of_one_process_in_every_mode(world):
    for keys in MODES:
        check(world, world.size, keys)


@ranks(2, 4, 7)
def metrics_are_those_of_one_process_on_a_network_that_is_cut(world):
    for cut in CUTS:
        check(world, world.size // 2 * 2, ("sync.mode=allreduce", f"parallel={cut}"))


@ranks(2, 3, 7)
def metrics_do_not_depend_on_the_number_of_ranks(world):
    with folder(world) as where:
        one, many = (train(world, n, where, *KEYS, *ANY, f"name=on-{n}")[0] for n in (1, world.size))
        for mine, other in zip(one, many, strict=True):
            assert mine["params_sha256"] == other["params_sha256"]
            assert agree(mine["metrics"], other["metrics"], 1e-12), (mine["metrics"], other["metrics"])


@ranks(3)
def metrics_change_no_bit_and_may_be_others_when_a_run_is_continued(world):
    with folder(world) as where:
        plain, _, _ = train(world, 3, where, "name=plain")
        assert all("metrics" not in record for record in plain), "a record has the key only where it is configured"
        train(world, 3, where, "name=measured", "train.epochs=1", "record.metrics=[ece]")
        more = ["name=measured", "checkpoint.resume=auto", "record.metrics=[top_2, confusion]"]
        measured, _, _ = train(world, 3, where, *more)
        assert [r["params_sha256"] for r in measured] == [r["params_sha256"] for r in plain]
        assert [list(r["metrics"]) for r in measured] == [["ece"], ["top_2", "confusion"]]


@ranks(2, 4, 7)
def metric_that_fails_ends_the_job_on_all_ranks(world):
    for keys in (("sync.mode=allreduce",), ("sync.mode=hogwild",), ("sync.mode=allreduce", "parallel={pipeline: 2}")):
        with folder(world) as where:
            n_ranks = world.size // 2 * 2
            train(world, n_ranks, where, *keys, f"record.metrics=[ece, '{OWN}:Late']", expect=2)
            train(world, n_ranks, where, *keys, f"record.metrics=[ece, '{OWN}:LateFinish']", expect=2)
