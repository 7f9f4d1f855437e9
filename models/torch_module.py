"""The user's PyTorch network (:func:`torch_module`), with its parameters in psframe's memory."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import numpy as np

from psframe.config.registry import load
from psframe.errors import UserError, raised, reason
from psframe.nn.base import Layer, Shape


def torch_module(
    input_shape: Shape,
    n_classes: int,
    *,
    build: str,
    arguments: dict[str, Any] | None = None,
    memory_format: Literal["auto", "contiguous", "channels_last"] = "auto",
) -> list[Layer]:
    """Return a ``torch.nn.Module`` as layers: one, or one per part with parameters of a ``torch.nn.Sequential``.

    The module takes float32 samples (n, C, H, W), or (n, C, T), and returns logits (n, n_classes). On a rank it runs as
    in PyTorch; psframe computes the loss, exchanges gradients, updates parameters, and averages running statistics over
    all workers. Frozen parameters and constant buffers stay unchanged and local to each rank.

    Parameters
    ----------
    build : str
        ``my_module:attr``, a function or class that makes the module from ``arguments``. Its parameters
        ``input_shape``, ``n_classes`` and ``num_classes``, if it has them, are passed too. Random initial values are
        drawn from PyTorch's generator, seeded with ``train.seed``.
    arguments : mapping, optional
        Keyword arguments of ``build``.
    memory_format : str
        Memory order of images. ``channels_last`` is faster for most convolutions; ``auto`` chooses it for a module that
        has convolutions and can train so. A module that views its activations in other shapes cannot.

    Raises
    ------
    UserError
        PyTorch is missing, or the module cannot be trained: no trainable parameter, parameters that are not float32 on
        the CPU or overlap in memory, sparse gradients, an output of another shape.
    """
    try:
        import torch
    except (ImportError, OSError) as error:
        raise UserError(
            f"model: torch must have PyTorch, got none ({reason(error)}); pip install torch==2.13.0"
        ) from None
    from psframe.nn.torch_layer import Torch
    from psframe.nn.torch_trial import takes_channels_last, try_out

    make = _maker(build, arguments or {}, {"input_shape": tuple(input_shape), "n_classes": n_classes})
    module = make(0)
    _check(build, module)
    shape, last = tuple(input_shape), memory_format == "channels_last"
    if last and len(shape) != 3:
        raise UserError(f"model.memory_format: channels_last is for images (C, H, W), got {shape}; give contiguous")
    if last:
        module.to(memory_format=torch.channels_last)
    last = last or (memory_format == "auto" and takes_channels_last(module, shape))
    source = _Initial(make, parts := _parts(module))
    names = {id(tensor): name for name, tensor in (*module.named_parameters(), *module.named_buffers())}
    images = [shape, *[None] * (len(parts) - 1)]
    trial = partial(try_out, build)
    return [Torch(part, names, of, last and of == shape, source, trial) for part, of in zip(parts, images, strict=True)]


class _Initial:
    """Initial values from a new module made from a seed; freed after every part has read them."""

    def __init__(self, make: Callable[[int], Any], parts: list[Any]):
        self.make, self.n_parts, self.left = make, len(parts), 0

    def __call__(self, seed: int) -> Mapping[str, Any]:
        if not self.left:
            module = self.make(seed)
            self.values, self.left = {**dict(module.named_parameters()), **dict(module.named_buffers())}, self.n_parts
        values = self.values
        self.left -= 1
        if not self.left:
            del self.values
        return values


def _maker(build: str, arguments: Mapping[str, Any], known: Mapping[str, Any]) -> Callable[[int], Any]:
    """Return a function that makes the module from a seed; raises UserError if ``build`` cannot be loaded."""
    import torch

    from psframe.nn.torch_trial import take_shapes

    target = load("model.build", {}, build)
    if isinstance(target, torch.nn.Module):
        raise UserError(
            f"model.build: {build} must make a torch.nn.Module, got a {type(target).__name__} that is made; name its "
            "class, or a function that returns one"
        )
    try:
        takes = inspect.signature(target).parameters
    except (TypeError, ValueError):
        takes = {}
    known = {**known, "num_classes": known["n_classes"]}
    given = {**{name: value for name, value in known.items() if name in takes}, **arguments}

    def make(seed: int) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            try:
                module = target(**given)
            except (Exception, SystemExit) as error:  # the user's code may raise anything
                raise UserError(
                    f"model.build: {build} must make a module from {_spelled(given)}, got "
                    f"{raised(error, build)}; mend it, or model.arguments"
                ) from None
            if not isinstance(module, torch.nn.Module):
                raise UserError(
                    f"model.build: {build} must make a torch.nn.Module, got {type(module).__name__}; return one"
                )
            if any(isinstance(p, torch.nn.UninitializedParameter) for p in module.parameters()):
                take_shapes(build, module, known["input_shape"])
        return module

    return make


def with_tensors(spec: Mapping[str, Any], input_shape: Shape, n_classes: int, tensors: Mapping[str, np.ndarray]) -> Any:
    """Return the module of a config's section ``model`` in evaluation mode, with the tensors of a run."""
    import torch

    known = {"input_shape": tuple(input_shape), "n_classes": n_classes}
    module = _maker(spec["build"], spec.get("arguments") or {}, known)(0)
    module.load_state_dict({name: torch.from_numpy(array) for name, array in tensors.items()}, strict=False)
    return module.eval()


def _spelled(given: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in given.items()) or "no arguments"


def _check(build: str, module: Any) -> None:
    """Raise UserError if the tensors of a module cannot be placed in an arena."""
    import torch

    trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    if not trained:
        raise UserError(f"model.build: {build} must have a parameter to train, got none; leave requires_grad as it is")
    storages: dict[int, str] = {}
    for name, p in trained:
        if p.dtype != torch.float32 or p.device.type != "cpu" or p.layout != torch.strided:
            raise UserError(
                f"model.build: every parameter that is trained must be dense float32 on the CPU, got {name} of "
                f"{p.dtype} on {p.device}; convert the module by .float() or .cpu(), or freeze it"
            )
        if any(stride == 0 < 1 < n for stride, n in zip(p.stride(), p.shape, strict=True)):
            raise UserError(
                f"model.build: parameters must not overlap in memory, got {name}, whose numbers are one; clone what "
                "was expanded"
            )
        other = storages.setdefault(p.untyped_storage().data_ptr(), name) if p.numel() else name
        if other != name:
            raise UserError(
                f"model.build: parameters must not overlap in memory, got {other} and {name}, which do; make them one "
                "torch.nn.Parameter, which layers may share"
            )


def _parts(module: Any) -> list[Any]:
    """Return the parts of a Sequential, each from one child with trained parameters to the next; else the module.

    Gradients of a part can be sent while those of earlier parts are computed.
    """
    import torch

    if type(module) is not torch.nn.Sequential:
        return [module]
    groups: list[list[Any]] = [[]]
    has = [{id(p) for p in child.parameters() if p.requires_grad} for child in module]
    filled = False
    for child, own in zip(module, has, strict=True):
        if own and filled:
            groups.append([])
        filled = filled or bool(own)
        groups[-1].append(child)
    if sum(map(len, has)) > len(set().union(*has)) or len({id(m) for m in module}) < len(module):
        return [module]  # shared parameters have complete gradients only at the end
    return [torch.nn.Sequential(*group) for group in groups]
