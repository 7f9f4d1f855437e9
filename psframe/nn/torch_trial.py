"""Trial of a PyTorch module (:func:`try_out`): a pass over two samples before a run begins."""

from dataclasses import dataclass, field

import torch
from torch.utils.flop_counter import FlopCounterMode

from psframe.errors import UserError, raised
from psframe.nn.base import Shape

N = 2  # samples of the pass: a single one has no variance for batch normalization


@dataclass
class Found:
    """Properties of a module found by a trial pass.

    Attributes
    ----------
    output_shape : tuple of int
        Shape for one sample.
    statistics : list of Tensor
        Buffers that a forward pass in training changes.
    flops : float
        Multiplications and additions of a forward pass for one sample.
    saved_bytes : int
        Bytes that PyTorch keeps of one sample for the backward pass.
    takes_one : bool
        True if the module can train on a batch of one sample.
    overwrites : bool
        True if the module writes to its input.
    """

    output_shape: Shape
    statistics: list[torch.Tensor] = field(default_factory=list)
    flops: float = 0.0
    saved_bytes: int = 0
    takes_one: bool = True
    overwrites: bool = False


def takes_channels_last(module: torch.nn.Module, shape: Shape) -> bool:
    """Return True if a module has 2-D convolutions and can train on images that are channels last in memory."""
    if len(shape) != 3 or not any(isinstance(part, torch.nn.Conv2d) for part in module.modules()):
        return False
    module.to(memory_format=torch.channels_last)
    try:
        try_out("", module, shape, False, True)
    except UserError:  # for example from view(), which may require contiguous images
        module.to(memory_format=torch.contiguous_format)
        return False
    return True


def try_out(name: str, module: torch.nn.Module, shape: Shape, need_dx: bool, channels_last: bool = False) -> Found:
    """Run a training pass of a module on random numbers, which changes only its statistics; return its properties.

    Parameters
    ----------
    name : str
        Name that the user gives it, for messages.
    shape : tuple of int
        Shape of a sample.
    need_dx : bool
        True if the gradient of the batch will be needed.
    channels_last : bool
        True if the batch is channels last in memory.

    Raises
    ------
    UserError
        The module cannot be trained: it raises, does not return one float32 tensor with a row per sample, returns one
        without a gradient, or has sparse gradients.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        x = torch.randn((N, *shape))  # zeros would leave running means unchanged
        x = (x.contiguous(memory_format=torch.channels_last) if channels_last else x).requires_grad_(need_dx)
        module.train()
        try:
            return _train_once(name, module, x)
        except UserError:
            raise
        except RuntimeError as error:
            if not x.requires_grad or "in-place" not in str(error):
                raise _refused(name, shape, error) from None
        except Exception as error:  # the user's module may raise anything
            raise _refused(name, shape, error) from None
        try:
            properties = _train_once(name, module, x, overwrites=True)
        except RuntimeError as error:
            raise _refused(name, shape, error) from None
    return properties


def take_shapes(name: str, module: torch.nn.Module, shape: Shape) -> None:
    """Let lazy layers infer their shapes from a sample; raises UserError if the module fails."""
    with torch.no_grad():
        try:
            module.eval()(torch.zeros((1, *shape)))
        except Exception as error:
            raise _refused(name, shape, error) from None


def _train_once(name: str, module: torch.nn.Module, x: torch.Tensor, overwrites: bool = False) -> Found:
    before = [(buffer, buffer.clone()) for buffer in module.buffers()]
    own_pointers = {tensor.untyped_storage().data_ptr() for tensor in (*module.parameters(), *module.buffers())}
    saved: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own_pointers:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()

    counter = FlopCounterMode(display=False)
    with counter, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        y = module(x.clone() if overwrites else x)
    properties = Found(_row_shape(name, y), overwrites=overwrites)
    properties.flops, properties.saved_bytes = counter.get_total_flops() / N, sum(saved.values()) // N
    if not y.requires_grad:
        raise UserError(
            f"model.build: {name} must return what its parameters have a gradient of, got an output without one; leave "
            "out no_grad() and detach()"
        )
    y.sum().backward()
    for tensor_name, parameter in module.named_parameters():
        if parameter.grad is not None and parameter.grad.is_sparse:
            raise UserError(
                f"model.build: {name} must have dense gradients, got sparse ones of {tensor_name}; give the layer "
                "sparse=False"
            )
        parameter.grad = None
    properties.statistics = [buffer for buffer, old in before if not torch.equal(buffer, old)]
    properties.takes_one = _takes_one(module, x[:1].detach())
    return properties


def _row_shape(name: str, y: object) -> Shape:
    if not isinstance(y, torch.Tensor) or y.dim() < 2 or len(y) != N or y.dtype != torch.float32:
        got = f"{tuple(y.shape)} of {y.dtype}" if isinstance(y, torch.Tensor) else type(y).__name__
        raise UserError(
            f"model.build: {name} must return one float32 tensor with a row for each of {N} samples, got {got}; mend "
            "its forward"
        )
    return tuple(y.shape[1:])


def _takes_one(module: torch.nn.Module, x: torch.Tensor) -> bool:
    try:
        with torch.no_grad():
            module(x)
    except Exception:
        return False
    return True


def _refused(name: str, shape: Shape, error: Exception) -> UserError:
    return UserError(
        f"model.build: {name} must train on samples of shape {shape}, got {raised(error, name)}; mend it, "
        "or choose another dataset"
    )
