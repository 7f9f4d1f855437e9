"""PyTorch module, or a part of one, as a layer (:class:`Torch`): tensors in the arena, passes in PyTorch."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from hashlib import sha256
from typing import Any

import numpy as np
import torch

from psframe.nn.base import Arrays, BaseLayer, Param, Pass, Shape
from psframe.nn.torch_trial import Found
from psframe.nn.workspace import Workspace

#: odd factors that mix (seed, epoch, first sample, layer) into a seed of PyTorch's generator
MIX = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5)


class Torch(BaseLayer):
    """Module that maps a batch of samples to a tensor (n, ...), both float32.

    Its statistics are buffers that a forward pass in training changes (batch normalization's running mean and
    variance). They are untrained tensors of the arena: their gradient is their decrease in the pass times the number of
    samples, and an update subtracts its mean. So all workers continue with the mean of their statistics.

    Parameters
    ----------
    module : torch.nn.Module
    names : mapping of int to str
        Names of the tensors in the user's module, by their ``id``.
    images : tuple of int, optional
        Shape of a sample in PyTorch, (C, H, W) or (C, T), if the input is the data's, channels last.
    channels_last : bool
        True if the module reads images in place; otherwise they are copied.
    initial : callable
        ``initial(seed)`` returns the initial values of the user's module by name.
    try_out : callable
        As :func:`psframe.nn.torch_trial.try_out`, without its ``name``.
    """

    whole = True
    bfloat16 = "autocast"

    def __init__(
        self,
        module: torch.nn.Module,
        names: Mapping[int, str],
        images: Shape | None,
        channels_last: bool,
        initial: Callable[[int], Mapping[str, torch.Tensor]],
        try_out: Callable[[torch.nn.Module, Shape, bool, bool], Found],
    ):
        self.module, self.names, self.images, self.channels_last = module, names, images, channels_last
        self.initial_of, self.try_out = initial, try_out

    def setup(self, input_shape: Shape, index: int) -> Shape:
        self.index, self.input_shape = index, input_shape
        shape = self.images if self.images else input_shape
        self.found = self.try_out(self.module, shape, self.images is None, self.channels_last)
        self.flops = self.found.flops
        self.trained = {self.names[id(p)]: p for p in self.module.parameters() if p.requires_grad}
        self.statistics = {self.names[id(b)]: b for b in self.found.statistics}
        self.owners: dict[str, list[tuple[torch.nn.Module, str]]] = {name: [] for name in self.statistics}
        for module in self.module.modules():
            for key, buffer in module.named_buffers(recurse=False, remove_duplicate=False):
                if (name := self.names.get(id(buffer), "")) in self.owners:
                    self.owners[name].append((module, key))
        self.several = False  # True if several passes can wait for backward
        self.params = {
            **{name: Param(tuple(p.shape), _order(p)) for name, p in self.trained.items()},
            **{name: Param(tuple(b.shape), _order(b), trained=False) for name, b in self.statistics.items()},
        }
        return self.found.output_shape

    def bind(self, params: Arrays, grads: Arrays, workspace: Workspace) -> None:
        torch.set_num_threads(workspace.threads.n)
        self.several, self.autocasts = workspace.n_kept > 1, workspace.autocasts
        workspace.beside(workspace.n_kept * workspace.max_batch * self.found.saved_bytes)
        #: by position of a pass's first sample: its input, its output, and the decrease of the statistics
        self.under_way: dict[int, tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]] = {}
        if self.images and not self.channels_last:
            self.input = torch.from_numpy(workspace.kept(self.images))
        #: the arena's tensors as PyTorch tensors, by the ``id`` of the mapping of their views
        self.views: dict[int, list[torch.Tensor]] = {}
        self.written = [False] * len(self.trained)
        for number, parameter in enumerate(self.trained.values()):
            parameter.register_post_accumulate_grad_hook(partial(self._take, number))
        self.grads = [torch.from_numpy(grads[name]) for name in self.trained]
        self.lost = [torch.from_numpy(grads[name]) for name in self.statistics]
        self.use(params)

    def use(self, params: Arrays) -> None:
        if id(params) not in self.views:
            self.views[id(params)] = [torch.from_numpy(params[name]) for name in self.params]
        views = self.views[id(params)]
        for parameter, view in zip(self.trained.values(), views, strict=False):
            parameter.data = view
        self.kept = views[len(self.trained) :]

    def initial(self, seed: int) -> Arrays:
        values = self.initial_of(seed)
        return {name: values[name].detach().to(torch.float32).numpy() for name in self.params}

    def describe(self) -> str:
        own_ids = {id(tensor) for tensor in (*self.trained.values(), *self.statistics.values())}
        fixed = [t for t in (*self.module.parameters(), *self.module.buffers()) if id(t) not in own_ids]
        digest = sha256()
        for tensor in fixed:
            digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        constants = f" with constants {digest.hexdigest()[:12]}" if fixed else ""
        return f"{self.module!r} of {self.images or self.input_shape}{constants}"

    def twin(self) -> torch.nn.Module:
        """Return a copy of the module in its current state, with its own memory."""
        self._take_statistics()
        return deepcopy(self.module)

    def _take_statistics(self) -> None:
        for name, kept in zip(self.statistics, self.kept, strict=True):
            if self.several:  # a pending backward pass keeps the statistics of its forward pass
                fresh = torch.empty_like(self.statistics[name])
                for module, key in self.owners[name]:
                    setattr(module, key, fresh)
                self.statistics[name] = fresh
            statistic = self.statistics[name]
            statistic.copy_(kept if statistic.is_floating_point() else kept.round())

    def forward(self, x: np.ndarray, state: Pass) -> np.ndarray:
        self._take_statistics()
        if self.module.training != state.train:
            self.module.train(state.train)
        if not state.train:
            with torch.no_grad():
                return _array(self._called(self._tensor(x, state.first)))
        torch.default_generator.manual_seed(_mixed(state, self.index))
        batch = self._tensor(x, state.first)
        if not self.images:
            batch.requires_grad_()
        y = self._in_training(batch.clone() if self.found.overwrites else batch)
        lost = [
            kept - statistic.to(kept.dtype)  # a statistic may be a bool
            for statistic, kept in zip(self.statistics.values(), self.kept, strict=True)
        ]
        self.under_way[state.first] = batch, y, lost
        return _array(y)

    def backward(self, x: np.ndarray, dy: np.ndarray, state: Pass, need_dx: bool) -> Any:
        batch, y, _ = self.under_way.pop(state.first)
        self.adds, self.written[:] = state.adds, [False] * len(self.written)
        y.backward(torch.from_numpy(dy))
        for written, grad in zip(self.written, self.grads, strict=True):
            if not written and not state.adds:  # the pass has not used the parameter
                grad.zero_()
        return batch.grad.numpy() if need_dx else None

    def note_statistics(self, n: int, state: Pass) -> None:
        for total, of_pass in zip(self.lost, self.under_way[state.first][2], strict=True):
            of_pass *= n
            if state.adds:
                total += of_pass
            else:
                total.copy_(of_pass)

    def _take(self, number: int, parameter: torch.Tensor) -> None:
        grad = self.grads[number]
        if self.adds:
            grad += parameter.grad
        else:
            grad.copy_(parameter.grad)
        parameter.grad, self.written[number] = None, True

    def _tensor(self, x: np.ndarray, first: int) -> torch.Tensor:
        """Return a batch as PyTorch's tensor; images of the data have channels first."""
        batch = torch.from_numpy(x)
        if not self.images:
            return batch
        channels_first = batch.permute(0, 3, 1, 2)
        if self.channels_last:
            return channels_first
        buffer = self.input[first : first + len(x)]
        return buffer.copy_(channels_first if len(self.images) == 3 else channels_first[:, :, 0])

    def _in_training(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output for a batch; one sample has no variance, and may need the running statistics."""
        if len(x) > 1 or self.found.takes_one:
            return self._called(x)
        norms = [m for m in self.module.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
        for norm in norms:
            norm.eval()
        try:
            return self._called(x)
        finally:
            for norm in norms:
                norm.train()

    def _called(self, x: torch.Tensor) -> torch.Tensor:
        """Return the module's output, float32: it may be bfloat16 under autocast."""
        if not self.autocasts:
            return self.module(x)
        with torch.autocast("cpu", torch.bfloat16):
            return self.module(x).to(torch.float32)


def _array(y: torch.Tensor) -> np.ndarray:
    return (y if y.dim() == 4 else y.contiguous()).detach().numpy()


def _mixed(state: Pass, index: int) -> int:
    numbers = (state.seed, state.epoch, int(state.samples[0]) if len(state.samples) else 0, index)
    return sum((number + 1) * odd for number, odd in zip(numbers, MIX, strict=True)) % (1 << 63)


def _order(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the axes from outermost to innermost in memory; in logical order if the memory has gaps."""
    strides = tensor.stride()
    order: Sequence[int] = sorted(range(tensor.dim()), key=lambda axis: -strides[axis])
    return tuple(order) if tensor.permute(tuple(order)).is_contiguous() else tuple(range(tensor.dim()))
