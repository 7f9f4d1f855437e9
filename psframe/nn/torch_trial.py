"""What a PyTorch module does with a batch, found out by a pass over two samples before a run begins."""

from dataclasses import dataclass, field

import torch
from torch.utils.flop_counter import FlopCounterMode

from psframe.errors import UserError, raised
from psframe.nn.base import Shape

N = 2  # samples of the pass: more than one, of which batch normalization knows no variance


@dataclass
class Found:
    """What a pass has shown.

    Attributes
    ----------
    output_shape : tuple of int
        Of one sample.
    statistics : list of Tensor
        Buffers that a forward pass in training changes.
    flops : float
        Multiplications and additions of a forward pass for one sample.
    saved_bytes : int
        What PyTorch keeps of one sample for the backward pass.
    takes_one : bool
        Whether a batch of one sample can be trained on.
    overwrites : bool
        Whether the module writes to its input.
    """

    output_shape: Shape
    statistics: list[torch.Tensor] = field(default_factory=list)
    flops: float = 0.0
    saved_bytes: int = 0
    takes_one: bool = True
    overwrites: bool = False


def takes_channels_last(module: torch.nn.Module, shape: Shape) -> bool:
    """Return whether a module with convolutions of images can be trained on those that are channels last in memory."""
    if len(shape) != 3 or not any(isinstance(part, torch.nn.Conv2d) for part in module.modules()):
        return False
    module.to(memory_format=torch.channels_last)
    try:
        try_out("", module, shape, False, True)
    except UserError:  # as of a view, which is of numbers that lie as those of contiguous images do
        module.to(memory_format=torch.contiguous_format)
        return False
    return True


def try_out(name: str, module: torch.nn.Module, shape: Shape, need_dx: bool, channels_last: bool = False) -> Found:
    """Train a module on a batch of random numbers, changing its statistics alone, and return what was found.

    Parameters
    ----------
    name : str
        What the user calls it, for messages.
    shape : tuple of int
        Of a sample.
    need_dx : bool
        Whether the gradient of the batch will be asked for.
    channels_last : bool
        How the batch lies in memory.

    Raises
    ------
    UserError
        Where it cannot be trained: it raises, or does not return one float32 tensor of a row a sample, or has sparse
        gradients.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        x = torch.randn((N, *shape))  # of zeros the mean is what statistics begin with
        x = (x.contiguous(memory_format=torch.channels_last) if channels_last else x).requires_grad_(need_dx)
        module.train()
        try:
            return _train_once(name, module, x)
        except UserError:
            raise
        except RuntimeError as error:
            if not x.requires_grad or "in-place" not in str(error):
                raise _refused(name, shape, error) from None
        except Exception as error:  # the module is the user's, and raises what it likes
            raise _refused(name, shape, error) from None
        try:
            found = _train_once(name, module, x, overwrites=True)
        except RuntimeError as error:
            raise _refused(name, shape, error) from None
    return found


def take_shapes(name: str, module: torch.nn.Module, shape: Shape) -> None:
    """Let lazy layers take their shapes from a sample; UserError as :func:`try_out`."""
    with torch.no_grad():
        try:
            module.eval()(torch.zeros((1, *shape)))
        except Exception as error:
            raise _refused(name, shape, error) from None


def _train_once(name: str, module: torch.nn.Module, x: torch.Tensor, overwrites: bool = False) -> Found:
    before = [(buffer, buffer.clone()) for buffer in module.buffers()]
    own = {tensor.untyped_storage().data_ptr() for tensor in (*module.parameters(), *module.buffers())}
    saved: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()

    counter = FlopCounterMode(display=False)
    with counter, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        y = module(x.clone() if overwrites else x)
    found = Found(_row_shape(name, y), overwrites=overwrites)
    found.flops, found.saved_bytes = counter.get_total_flops() / N, sum(saved.values()) // N
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
    found.statistics = [buffer for buffer, old in before if not torch.equal(buffer, old)]
    found.takes_one = _takes_one(module, x[:1].detach())
    return found


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
