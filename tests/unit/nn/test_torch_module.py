"""A user's module in PyTorch, as psframe trains it, against what PyTorch makes of it."""

import numpy as np
import pytest

from psframe import compiled
from psframe.errors import UserError
from psframe.models.torch_module import torch_module
from psframe.nn import operations
from psframe.nn.base import LayerHook, Pass
from psframe.optim import SGD, Adam, Updater
from psframe.record import checkpoint
from psframe.tensors import tensors
from psframe.train.assembly.allocate import Sizes
from tests.helpers.thinned import thinned
from tests.helpers.untrusted import refuse

torch = pytest.importorskip("torch", reason="PyTorch, whose modules these are, is not installed")
from tests.helpers.torch_workers import BATCH, CLASSES, IMAGES, Worker, batches, close, reference, seeded  # noqa: E402

torch.set_num_threads(1)

SEQUENCES = (3, 12)
CASES = {
    "ResNet": IMAGES,
    "Attention": IMAGES,
    "Pointed": IMAGES,
    "Recurrent": SEQUENCES,
    "Flagged": IMAGES,
    "row": IMAGES,
    "twice": IMAGES,
    "plain": IMAGES,
}

OPTIMIZERS = {  # ours, PyTorch's, numbers of state
    "sgd": (
        lambda: SGD(lr=0.1, momentum=0.9, weight_decay=0.01),
        lambda trained: torch.optim.SGD(trained, 0.1, 0.9, weight_decay=0.01),
        1,
    ),
    "adam": (lambda: Adam(lr=0.01, eps=1e-3), lambda trained: torch.optim.Adam(trained, 0.01, eps=1e-3), 2),
}


@pytest.fixture(autouse=True)
def torch_generator():
    """PyTorch's own generator, in the same state at the beginning of each test, whichever ran before."""
    torch.manual_seed(0)


@pytest.mark.parametrize("name", ["row", "ResNet"])
def test_gradients_in_bfloat16_are_those_of_autocast(name):
    worker, module = Worker(name, IMAGES, precision="bf16"), reference(name, IMAGES, 7)
    ours, theirs, labels = batches(IMAGES, BATCH, 0)
    loss, _ = worker.network.gradients(ours, labels, Pass(True, 3, 1, np.arange(BATCH)))
    with torch.autocast("cpu", torch.bfloat16):
        logits = seeded(module)(theirs)
    assert logits.dtype == torch.bfloat16
    wanted = torch.nn.functional.cross_entropy(logits.float(), torch.from_numpy(labels), reduction="sum")
    wanted.backward()
    assert loss == pytest.approx(wanted.item(), rel=0.02)
    grads = {n.split(".", 2)[2]: view for n, view in worker.arena.views(worker.arena.grads).items()}
    for tensor_name, parameter in module.named_parameters():
        if parameter.grad is not None:
            wanted = parameter.grad.numpy()
            assert grads[tensor_name].dtype == np.float32
            assert np.linalg.norm(grads[tensor_name] - wanted) <= 0.05 * np.linalg.norm(wanted) + 1e-3


@pytest.mark.parametrize("name", CASES)
def test_gradients_and_loss_are_those_of_pytorch(name):
    shape = CASES[name]
    worker, module = Worker(name, shape), reference(name, shape, 7)
    frozen = {n for n, p in module.named_parameters() if not p.requires_grad}
    with torch.no_grad():  # frozen ones are of another seed
        for n, p in worker.network.layers[0].module.named_parameters():
            if n in frozen:
                module.get_parameter(n).copy_(p)
    for n, p in module.named_parameters():
        if n not in frozen:
            np.testing.assert_array_equal(worker.tensors()[n], p.detach().numpy())
    ours, theirs, labels = batches(shape, BATCH, 0)
    loss, _ = worker.network.gradients(ours, labels, Pass(True, 3, 1, np.arange(BATCH)))
    wanted = torch.nn.functional.cross_entropy(seeded(module)(theirs), torch.from_numpy(labels), reduction="sum")
    wanted.backward()
    assert loss == pytest.approx(wanted.item(), rel=1e-5)
    grads = {n.split(".", 2)[2]: g for n, g in worker.arena.views(worker.arena.grads).items()}
    for n, p in module.named_parameters():
        if n in frozen:
            assert n not in grads
        else:
            close(grads[n], p.grad if p.grad is not None else torch.zeros_like(p))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("sizes", thinned([((6,),), ((6, 6),), ((6, 2, 4),)], (0, 2)))
@pytest.mark.parametrize("name", ["ResNet", "row", "Pointed", "Flagged"])
def test_steps_of_workers_are_those_of_one_module(name, sizes, copies, optimizer):
    """Parameters, statistics and what a test sample gets, where workers take the mean over all samples."""
    make_ours, make_theirs, n_state = OPTIMIZERS[optimizer]
    workers = [Worker(name, IMAGES, n_state, copies) for _ in sizes]
    module = reference(name, IMAGES, 7)
    with torch.no_grad():
        for n, p in module.named_parameters():
            if not p.requires_grad:
                p.copy_(workers[0].network.layers[0].module.get_parameter(n))
    trained = [p for p in module.parameters() if p.requires_grad]
    theirs = make_theirs(trained)
    updaters = [Updater(make_ours(), worker.arena) for worker in workers]
    for step in range(3):
        stats, n_all = {n: torch.zeros_like(b, dtype=torch.float64) for n, b in module.named_buffers()}, sum(sizes)
        before = {n: b.clone() for n, b in module.named_buffers()}
        theirs.zero_grad()
        for number, (worker, n) in enumerate(zip(workers, sizes, strict=True)):
            ours, images, labels = batches(IMAGES, n, 10 * step + number)
            worker.network.gradients(ours, labels, Pass(True, 3, 1, np.arange(n)))
            for key, b in module.named_buffers():
                b.copy_(before[key])
            loss = torch.nn.functional.cross_entropy(module(images), torch.from_numpy(labels), reduction="sum")
            (loss / n_all).backward()
            for key, b in module.named_buffers():
                stats[key] += b.double() * n / n_all
        with torch.no_grad():
            for key, b in module.named_buffers():
                b.copy_(stats[key])
        for p in trained:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        theirs.step()
        rows = [worker.arena.grads for worker in workers]
        for worker, updater in zip(workers, updaters, strict=True):
            size = worker.network.layout.size
            for part in (slice(0, size // 3), slice(size // 3, size)):  # wherever a segment may end
                updater(
                    part, compiled.elementwise.Mean([r[part] for r in rows]).over(n_all), updater.optimizer.lr, step + 1
                )
            worker.arena.end_step()
        for n, p in [*module.named_parameters(), *module.named_buffers()]:
            for worker in workers:
                if n in worker.tensors():
                    close(worker.tensors()[n], p.double(), rtol=2e-4)
    if len(sizes) > 1:
        np.testing.assert_array_equal(workers[0].arena.params, workers[1].arena.params)
    ours, images, labels = batches(IMAGES, BATCH, 99)
    loss, _ = workers[-1].network.evaluate(ours, labels)
    with torch.no_grad():
        wanted = torch.nn.functional.cross_entropy(module.eval()(images), torch.from_numpy(labels), reduction="sum")
    assert loss == pytest.approx(wanted.item(), rel=2e-3)


def test_statistics_of_one_sample_stay_what_they_are():
    worker = Worker("Pointed", IMAGES)
    ours, _, labels = batches(IMAGES, 1, 0)
    loss, _ = worker.network.gradients(ours, labels, Pass(True, 3, 1, np.arange(1)))
    grads = worker.arena.grads
    assert np.isfinite(loss)
    assert np.abs(grads[: worker.network.layout.n_trained]).max() > 0
    assert not grads[worker.network.layout.n_trained :].any()
    assert worker.network.layers[0].module.training
    assert worker.network.layers[0].module.norm.training
    assert not np.isnan(worker.network.gradients(*batches(IMAGES, 2, 0)[::2], Pass(True, 3, 1, np.arange(2)))[0])


def test_statistics_are_those_that_a_pass_changes():
    worker = Worker("Pointed", IMAGES)
    layout = worker.network.layout
    names = {name.split(".", 2)[2] for name, slot in layout.slots.items() if slot.start >= layout.n_trained}
    assert names == {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    assert "scale" not in worker.tensors()
    assert "with constants" in worker.network.layers[0].describe()
    assert not any("with constants" in layer.describe() for layer in Worker("ResNet", IMAGES).network.layers)


def test_description_is_of_the_numbers_that_no_worker_trains():
    """Workers that differ in them would train other networks; those in the arena are rank 0's everywhere."""
    layer = Worker("Pointed", IMAGES).network.layers[0]
    as_made, fixed = layer.describe(), {"frozen.weight", "frozen.bias", "scale"}
    every = {**dict(layer.module.named_parameters()), **dict(layer.module.named_buffers())}
    assert fixed < set(every)
    for name, tensor in every.items():
        for place in {0, tensor.numel() - 1}:
            number = tensor.data.view(-1)[place]
            before = number.clone()
            number += 1
            assert (layer.describe() != as_made) == (name in fixed), (name, place)
            number.copy_(before)
            assert layer.describe() == as_made


def test_sequential_is_cut_before_every_layer_with_parameters():
    names = [list(layer.params) for layer in Worker("row", IMAGES).network.layers]
    assert [len(Worker(name, IMAGES).network.layers) for name in ("ResNet", "twice", "plain")] == [1, 1, 2]
    assert [own[0] for own in names] == ["0.weight", "3.weight", "6.weight", "7.linear.weight", "9.weight"]


def test_gradients_leave_while_backward_goes_on():
    worker, left = Worker("row", IMAGES), []
    ours, _, labels = batches(IMAGES, BATCH, 0)
    worker.network.gradients(ours, labels, Pass(True, 0, 0, np.arange(BATCH)), LayerHook(range(5), left.append))
    assert [s.stop for s in left] == [worker.network.layout.size, *[s.start for s in left[:-1]]]
    assert len(left) == 5
    assert left[-1].start == 0


def test_dropout_depends_on_the_sample_and_nothing_before():
    worker = Worker("ResNet", IMAGES, dropout=0.5)
    ours, _, labels = batches(IMAGES, BATCH, 0)

    def loss(epoch, first):
        torch.rand(3)
        return worker.network.gradients(ours, labels, Pass(True, 3, epoch, np.arange(first, first + BATCH)))[0]

    assert loss(1, 0) == loss(1, 0)
    assert len({loss(1, 0), loss(2, 0), loss(1, 6)}) == 3


def test_dropout_is_another_in_every_layer_of_each_seed_epoch_and_sample():
    worker = Worker("dropping", IMAGES)
    images, rows = np.ones((BATCH, 8, 9, 2), np.float32), np.ones((BATCH, 144), np.float32)
    worker.arena.params[:] = 1  # so that zeros are what is dropped
    passes = [Pass(True, s, e, np.arange(f, f + BATCH)) for s, e, f in ((3, 1, 0), (4, 1, 0), (3, 2, 0), (3, 1, 6))]
    dropped = []
    for state in passes:
        first, *others = worker.network.layers[:3]
        given = [first.forward(images, state), *(layer.forward(rows, state) for layer in others)]
        dropped += [outputs == 0 for outputs in given]
    assert all(0.4 < mask.mean() < 0.6 for mask in dropped)
    assert len({mask.tobytes() for mask in dropped}) == len(dropped) == 12


def test_memory_that_pytorch_takes_is_reckoned_and_not_reserved():
    small, large = Worker("ResNet", IMAGES), Worker("ResNet", IMAGES, width=8)
    beside = [worker.allocator.beside["activations"] for worker in (small, large)]
    assert 1.8 * beside[0] < beside[1] < 2.2 * beside[0]
    of_conv = BATCH * 4 * 4 * 8 * 9
    assert beside[0] > 5 * of_conv
    sizes = Sizes.of(small.allocator, 0)
    assert sizes.by_place["activations"] - sizes.private["activations"] == beside[0]


def test_operations_are_counted():
    convolution = 2 * 5 * 2 * 9 * 6 * 7
    assert operations.of_forward(Worker("row", IMAGES).network, 0) == convolution


BAD = {
    "sparse": ["dense gradients", "table.weight", "sparse=False"],
    "half": ["float32", "torch.float64"],
    "frozen": ["must have a parameter to train", "requires_grad"],
    "overlapping": ["must not overlap", "norm.weight and norm.bias"],
    "expanded": ["must not overlap", "1.bias", "expanded"],
    "Detached": ["have a gradient of", "detach()"],
    "two_outputs": ["must return one float32 tensor", "got tuple"],
    "too_few": ["one number a class", "(4,)"],
    "leaves": ["must make a module from no arguments", "SystemExit in torch_nets.py, line "],
    "no_module": ["must make a torch.nn.Module", "got list"],
    "wrong_shape": ["must train on samples of shape (2, 8, 9)", "RuntimeError", "17"],
    "Crooked": ["must train on samples", "RuntimeError in torch_nets.py, line ", "mat1"],
    "missing": ["has no 'missing'"],
}


@pytest.mark.parametrize("name", BAD)
def test_module_that_cannot_be_trained_is_refused(name):
    refuse(lambda: Worker(name, IMAGES), *BAD[name])


def test_arguments_are_the_users():
    refuse(lambda: Worker("ResNet", IMAGES, widht=3), "model.build", "widht", "model.arguments")
    assert Worker("ResNet", IMAGES, width=3).tensors()["stem.weight"].shape == (3, 2, 3, 3)
    with pytest.raises(UserError, match="my_module"):
        torch_module(IMAGES, CLASSES, build="resnet")


def test_module_takes_what_a_run_has_learnt(tmp_path):
    worker = Worker("row", IMAGES)
    worker.arena.params[:] = np.random.default_rng(0).standard_normal(len(worker.arena.params))
    (tmp_path / "checkpoints").mkdir()
    saved = checkpoint.Saved(worker.arena.params, [], 1, 5, worker.network.layout.describe())
    path = checkpoint.write(tmp_path / "checkpoints", saved)
    checkpoint.advance(path, 1)
    module, learnt = reference("row", IMAGES, 3), tensors(tmp_path)
    missing, unexpected = module.load_state_dict({n: torch.from_numpy(t) for n, t in learnt.items()}, strict=False)
    assert not missing
    assert not unexpected
    ours, images, _ = batches(IMAGES, 2, 0)
    with torch.no_grad():
        close(worker.network.forward(ours, Pass()), module.eval()(images))
    refuse(lambda: tensors(tmp_path / "checkpoints"), "must have a checkpoint", "got none")
