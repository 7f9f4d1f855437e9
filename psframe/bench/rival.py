"""Base class of psframe's rivals (:class:`Rival`): the same run in PyTorch, all but the exchange of gradients.

A rival trains the network of a run from the run's initial parameters, on the batches that psframe's own code prepares,
at the run's learning rates, and with ``train.precision: bf16`` under PyTorch's autocast. Every rank is a worker and
takes every step, with no samples if none are left for it. Losses are summed and scaled so that the mean over ranks is
the mean over the samples of the step.
"""

from importlib import import_module
from typing import Any, ClassVar

import numpy as np

from psframe.bench.torch_network import copy_parameters, torch_images, torch_module
from psframe.collectives.base import cut
from psframe.errors import reason
from psframe.nn.losses import Labels, Targets
from psframe.train import epoch
from psframe.train.run import Run


class Rival:
    """The network of a run in PyTorch; a subclass defines the exchange of gradients.

    Parameters
    ----------
    run : Run
        Begun, and not trained yet. All ranks must create the same rival together.
    memory_format : {'channels_last', 'contiguous'}
    """

    packages: ClassVar[tuple[str, ...]] = ("torch",)

    @classmethod
    def missing(cls) -> str:
        """Return the reason why this cannot run here, or ""."""
        for name in cls.packages:
            try:
                import_module(name)
            except (ImportError, OSError, RuntimeError) as error:
                return f"{name} cannot be imported ({reason(error)[:200]})"
        return ""

    def __init__(self, run: Run, memory_format: str):
        import torch

        self.torch, self.comm, self.memory_format = torch, run.cluster.comm, memory_format
        torch.set_num_threads(run.labels["threads"])
        torch.manual_seed(run.config.train.seed + self.comm.rank)  # only dropout masks differ from psframe's
        self.network = torch_module(run.network.layers, run.facts.input_shape, memory_format)
        arena = run.network.arena
        if not any(hasattr(layer, "twin") for layer in run.network.layers):  # twins come with their own parameters
            copy_parameters(self.network, arena.views(arena.params).values())
        self.initial = {name: tensor.clone() for name, tensor in self.network.state_dict().items()}
        sgd: Any = run.updater.optimizer
        self.optimizer: Any = torch.optim.SGD(
            self.network.parameters(),
            sgd.lr,
            sgd.momentum,
            weight_decay=sgd.weight_decay,
            nesterov=bool(sgd.nesterov and sgd.momentum),  # as in psframe, it has no effect without momentum
        )
        self.module: Any = self.network  # the module whose forward is called

    def train_epoch(self, run: Run) -> np.ndarray:
        """Train ``run.progress.epoch`` on this rank's batches; return its summed losses by step, (n_steps,)."""
        order, worker = run.sampler.permutation(run.progress.epoch), run.team.worker
        losses = np.zeros(run.sampler.n_steps)
        assert worker is not None
        self.module.train()
        for step in range(run.sampler.n_steps):
            samples = run.sampler.samples(order, step, worker)
            x = run.batches.load("train", samples, run.progress.epoch)
            loss = self.loss(x, run.batches.targets_of(samples, run.progress.epoch), run)
            self.step(loss, run.sampler.samples_in(step), epoch.learning_rate_at(run, run.progress.epoch, step))
            losses[step] = loss.item()
        return losses

    def loss(self, x: np.ndarray, labels: Labels, run: Run) -> Any:
        with self._autocast(run):
            logits = self.module(torch_images(x, run.facts.input_shape, self.memory_format)).float()
        wanted = labels.dense(run.facts.n_classes) if isinstance(labels, Targets) else labels
        return self.torch.nn.functional.cross_entropy(logits, self.torch.from_numpy(wanted), reduction="sum")

    def step(self, loss: Any, n_samples: int, lr: float) -> None:
        """Run backward from this rank's summed loss; update by the mean over the ``n_samples`` of all ranks."""
        self.optimizer.param_groups[0]["lr"] = lr
        self.optimizer.zero_grad()
        (loss * (self.comm.size / n_samples)).backward()  # the exchange averages this over ranks
        self.optimizer.step()

    def evaluate(self, run: Run) -> float:
        """Return the accuracy on the test set, which is split among the ranks. All ranks must call."""
        part, hits = cut(run.facts.n_test, run.cluster.n_ranks, run.cluster.rank), 0
        self.network.eval()
        with self.torch.no_grad(), self._autocast(run):
            for lo in range(part.start, part.stop, run.sampler.max_batch):
                samples = np.arange(lo, min(lo + run.sampler.max_batch, part.stop))
                x = run.batches.load("test", samples)
                logits = self.network(torch_images(x, run.facts.input_shape, self.memory_format))
                hits += int((logits.argmax(1).numpy() == run.batches.labels_of("test", samples)).sum())
        return self.comm.allreduce(hits) / run.facts.n_test

    def _autocast(self, run: Run) -> Any:
        return self.torch.autocast("cpu", self.torch.bfloat16, enabled=run.config.train.precision == "bf16")

    def restore(self) -> None:
        """Reset to the initial parameters and no momentum."""
        self.network.load_state_dict(self.initial)
        self.optimizer.state.clear()

    def wake(self) -> None:
        """Start threads that run beside an epoch, before it is timed. All ranks must call."""

    def rest(self) -> None:
        """Stop these, so that nothing of this rival runs while another trains. All ranks must call."""

    def close(self) -> None:
        """Shut down. All ranks must call."""
