"""Metrics of whole runs: those of all ranks' logits together, whatever the mode, the ranks and the cut."""

from unittest import mock

import numpy as np

from psframe.api.evaluate import read
from psframe.api.runs import Run
from psframe.nn import metrics
from psframe.nn.metrics.meter import Meter
from tests.helpers import metric_references as references
from tests.helpers.suite import IS_FULL
from tests.ranks.every_mode import MODES, key, n_workers
from tests.ranks.harness import ranks
from tests.ranks.training import folder, train

OWN = "tests.helpers.own_metrics"
SPECS = ["top_3", *(name for name in metrics.TABLE if name != "top_k"), f"{OWN}:MeanMargin"]
ASKED = f"record.metrics=[{', '.join(SPECS)}]"
COUNTS = ("top_3", "confusion")
KEYS = (ASKED, "nn.kernels=blas", "train.epochs=1")
SERVERS = ("sync.server=dedicated", "sync.server=colocated", "sync.mode=allreduce")
ANY = ("sync.mode=allreduce", "train.reproducible=any_workers", "train.global_batch=24", "train.blocks=16")
#: by the keys that make them, test samples of which no number of ranks is a divisor, and fewer than there may be ranks
SIZES = {"dataset.samples=206": 41, "dataset.samples=30": 6}
CUTS = ("{pipeline: 2}", "{model: 2}", "{model: 2, convolutions: data}", "{micro_batches: 3}")


class Seen(Meter):
    """A meter that keeps a copy of what it is given in the last evaluation."""

    batches: list = []  # noqa: RUF012

    def __init__(self, of_all):
        super().__init__(of_all)
        Seen.batches = []

    def add(self, logits, labels):
        Seen.batches.append((logits.copy(), labels.copy()))
        super().add(logits, labels)


def trained(world, where, n_ranks, *keys):
    """Return the last record, the run's folder, and the logits and labels of all ranks in its last evaluation."""
    Seen.batches = []
    with mock.patch("psframe.train.epoch.Meter", Seen):
        records, _, run = train(world, n_ranks, where, *KEYS, *keys)
    batches = [batch for of_rank in world.allgather(Seen.batches) for batch in of_rank]
    logits, labels = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    return records[-1], run, logits, labels


def flat(value):
    return [number for item in value for number in flat(item)] if isinstance(value, list) else [value]


def differing(mine, other, tolerance=1e-12):
    """Return the labels of ``other`` at which metrics differ: counts at all, the rest by more than the tolerance."""
    return [
        label
        for label in other
        if (label in COUNTS and mine[label] != other[label])
        or not np.allclose(flat(mine[label]), flat(other[label]), rtol=tolerance, atol=tolerance)
    ]


def check(world, n_ranks, *keys):
    """Train, and compare the record's metrics with those of all logits together."""
    for size, n_test in SIZES.items():
        with folder(world) as where:
            record, _, logits, labels = trained(world, where, n_ranks, size, *keys)
            values = record["metrics"]
            assert list(values) == [*SPECS[:-1], "margin"]
            assert sorted(labels) == sorted(np.arange(n_test) % 5), f"each sample counts once: {keys}"
            if world.rank == 0:  # all have the same values, and these take long
                for expected in (references.everything(logits, labels), references.of_scikit_learn(logits, labels)):
                    assert not (wrong := differing(values, expected)), (keys, size, wrong, values, expected)
            assert not differing(values, metrics.compute(SPECS, logits, labels))
            accuracy = np.trace(values["confusion"]) / n_test
            assert np.isclose(accuracy, record["accuracy"], rtol=1e-12)
            assert np.isclose(values["log_loss"], record["test_loss"], rtol=1e-9)


@ranks(1, 2, 3, 5, 7, 16)
def metrics_are_those_of_all_logits_together(world):
    for server in SERVERS:
        check(world, world.size, server)
    check(world, world.size, *ANY)


@ranks(3, 5, 7, 16, full=True)
def metrics_are_those_of_all_logits_together_in_every_mode(world):
    for mode in [*MODES][:: 1 if IS_FULL else 3]:
        if n_workers(world, mode) >= MODES[mode]:
            check(world, world.size, key(mode))


@ranks(2, 4, 6, 16, full=True)
def metrics_are_those_of_all_logits_together_on_a_network_that_is_cut(world):
    for cut in CUTS:
        check(world, world.size, "sync.mode=allreduce", f"parallel={cut}")


@ranks(2, 3, 5, 7, 16, virtual=True)
def metrics_do_not_depend_on_the_number_of_ranks(world):
    with folder(world) as where:
        one, many = (trained(world, where, n, *ANY, f"name=on-{n}")[0] for n in (1, world.size))
        assert one["params_sha256"] == many["params_sha256"]
        assert not differing(one["metrics"], many["metrics"]), (one["metrics"], many["metrics"])


@ranks(3, virtual=True)
def metrics_of_a_trained_run_are_those_of_its_record(world):
    with folder(world) as where:
        record, path, _, _ = trained(world, where, world.size)
        run = Run(path)
        images, labels = read(run.config.dataset, "test", run.trained.inputs.shape)
        scores = run.evaluate(images, labels, SPECS)
        # products of float32 may be summed in another order with other batches
        assert not differing(record["metrics"], scores["metrics"], 1e-5), (record["metrics"], scores)


@ranks(3, virtual=True)
def metrics_change_no_bit_and_may_be_others_when_a_run_is_continued(world):
    with folder(world) as where:
        plain, _, _ = train(world, 3, where, "nn.kernels=blas", "name=plain")
        assert all("metrics" not in record for record in plain), "a record has the key only where it is configured"
        train(world, 3, where, "nn.kernels=blas", "name=measured", "train.epochs=1", "record.metrics=[ece]")
        more = ["nn.kernels=blas", "name=measured", "checkpoint.resume=auto", "record.metrics=[top_2, confusion]"]
        measured, _, _ = train(world, 3, where, *more)
        assert [r["params_sha256"] for r in measured] == [r["params_sha256"] for r in plain]
        assert [list(r["metrics"]) for r in measured] == [["ece"], ["top_2", "confusion"]]


@ranks(2, 4, 7, full=True)
def metric_that_fails_ends_the_job_on_all_ranks(world):
    for keys in (("sync.mode=allreduce",), ("sync.mode=hogwild",), ("sync.mode=allreduce", "parallel={pipeline: 2}")):
        for name in ("Late", "LateFinish"):
            with folder(world) as where:
                asked = f"record.metrics=[ece, {OWN}:{name}]"
                train(world, world.size // 2 * 2, where, *KEYS[1:], *keys, asked, expect=2)
                (run,) = (where / "runs").iterdir()
                assert (run / "checkpoints" / "latest").exists(), "it fails behind the epoch's record and checkpoint"
