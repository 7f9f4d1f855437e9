"""Communication hook of DDP that updates where it sums (:class:`Fused`): each rank a share of every parameter.

Of a bucket of gradients, each rank receives the mean of its share alone, updates its share of the parameters, which lie
in memory that all ranks read, and has the optimizer's state for it alone: stage 1 of ZeRO (Rajbhandari et al. 2020)
without a second exchange.
"""

from collections.abc import Iterable
from functools import partial
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist

from psframe.torch.group import Group

ALIGNED = 64  # bytes


class Fused:
    """Hook for ``DistributedDataParallel.register_comm_hook(None, hook)``. All ranks must make it.

    From then on the backward pass updates the parameters; ``optimizer.step()`` does nothing, and learning rates and
    other options that change in ``optimizer.param_groups`` count. The parameters have
    the bits that DDP without a hook gives them. After backward, ``grad`` holds a rank's own gradients.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        Any whose update of a number needs no other number than its own gradient and state: SGD, Adam, AdamW, RMSprop
        and others, without state so far (Adagrad has some from its begin). A parameter that no rank has used counts
        as one with a gradient of 0.
    group : ProcessGroup, optional
        A psframe group whose ranks are on one node; by default the job's.

    Raises
    ------
    ValueError
        The group is none of psframe's, or on several nodes; the optimizer has a state; or parameters are not
        contiguous.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, group: Any = None):
        group = dist.group.WORLD if group is None else group
        parameters = [p for options in optimizer.param_groups for p in options["params"]]
        if (
            not isinstance(group, Group)
            or len(group.meeting.nodes.ranks) > 1
            or optimizer.state
            or not all(p.is_contiguous() for p in parameters)
        ):
            raise ValueError(
                "a fused hook must have a psframe group of one node, contiguous parameters, and an optimizer without "
                f"state, got {type(group).__name__} and {len(optimizer.state)} states of {type(optimizer).__name__}; "
                "make the optimizer anew, and load its state behind the hook"
            )
        self.optimizer, self.group = optimizer, group
        self.__name__ = self.__qualname__ = "fused_hook"
        _share(parameters, group)
        self.shares = {p: p.detach().view(-1)[_share_of(p.numel(), group)] for p in parameters}
        grouped = [
            {**options, "params": [self.shares[p] for p in options["params"]]} for options in optimizer.param_groups
        ]
        self.inner: Any = type(optimizer)(grouped)
        self.places = {p: (g, i) for g, o in enumerate(optimizer.param_groups) for i, p in enumerate(o["params"])}
        optimizer.step = MethodType(_no_step, optimizer)

    def __call__(self, state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Exchange and update the parameters of a bucket; return its future, a tensor that DDP takes for the mean."""
        buffer, parameters = bucket.buffer(), bucket.parameters()
        pieces, sums, at = [], [], 0
        for p in parameters:
            flat = buffer[at : at + p.numel()]
            at += p.numel()
            pieces.append([flat[_share_of(p.numel(), self.group, rank)] for rank in range(self.group.n)])
            sums.append(torch.empty_like(self.shares[p]))
        if self.group.n & (self.group.n - 1):  # DDP scales before it sums: other bits, but for powers of two
            buffer.mul_(1 / self.group.n)
            work = self.group.reduce_scatter_lists(sums, pieces, dist.ReduceOp.SUM)
        else:
            work = self.group.reduce_scatter_lists(sums, pieces, dist.ReduceOp.AVG)
        done: torch.futures.Future[torch.Tensor] = work.get_future()
        return done.then(partial(self._update, parameters, sums, buffer))

    def _update(self, parameters: list[torch.Tensor], means: list[torch.Tensor], buffer: torch.Tensor, _: Any) -> Any:
        for share in self.shares.values():
            share.grad = None
        for p, mean in zip(parameters, means, strict=True):
            self.shares[p].grad = mean
        for outer, inner in zip(self.optimizer.param_groups, self.inner.param_groups, strict=True):
            inner.update({key: value for key, value in outer.items() if key != "params"})
        self.inner.step()
        self.group.barrier().wait()  # before anybody reads the parameters
        return buffer

    def consolidate(self) -> None:
        """Give the optimizer the states of all ranks' shares, so that it can be saved. All ranks must call."""
        for p, share in self.shares.items():
            state = self.inner.state.get(share, {})
            whole = {}
            for key, value in state.items():
                if torch.is_tensor(value) and value.shape == share.shape:
                    every = torch.zeros(p.numel(), dtype=value.dtype)
                    rows = [every[_share_of(p.numel(), self.group, rank)] for rank in range(self.group.n)]
                    dist.all_gather(rows, value, group=self.group)
                    value = every.view(p.shape)
                whole[key] = value
            if whole:
                self.optimizer.state[p] = whole

    def restore(self) -> None:
        """Take this rank's shares of the state that the optimizer has loaded."""
        for p, share in self.shares.items():
            for key, value in self.optimizer.state.get(p, {}).items():
                # the number of steps is no part of a parameter, though it has the shape of one that is a number
                whole = torch.is_tensor(value) and value.shape == p.shape and key != "step"
                part = value.reshape(-1)[_share_of(p.numel(), self.group)].clone() if whole else value
                self.inner.state[share][key] = part


def _no_step(optimizer: Any, closure: Any = None) -> Any:
    """Stand for ``optimizer.step``, as schedulers of learning rates find it."""
    optimizer._opt_called = True
    return closure() if closure else None


_no_step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]


def _share_of(n: int, group: Group, rank: int | None = None) -> slice:
    """Return the share of a rank, by default this one, of ``n`` numbers."""
    number = group.me if rank is None else rank
    return slice(n * number // group.n, n * (number + 1) // group.n)


def _share(parameters: Iterable[torch.Tensor], group: Group) -> None:
    """Let parameters lie in memory of all ranks, with the values of the first one."""
    tensors = list(parameters)
    sizes = [-(-t.numel() * t.element_size() // ALIGNED) * ALIGNED for t in tensors]
    memory = torch.from_numpy(group.meeting.share(sum(sizes)))
    at = 0
    with torch.no_grad():
        for tensor, size in zip(tensors, sizes, strict=True):
            place = memory[at : at + tensor.numel() * tensor.element_size()].view(tensor.dtype).view(tensor.shape)
            if group.me == 0:
                place.copy_(tensor)
            tensor.data = place
            at += size
    group.barrier().wait()
