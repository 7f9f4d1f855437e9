"""Objects of a script in a config (:func:`named`): each is replaced by a name, under which ranks find it."""

import inspect
import pickle
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np

from psframe import optim
from psframe.api import script
from psframe.config import schema
from psframe.errors import UserError, reason
from psframe.record.log import LOG

#: sections whose value may be an object: a callable that makes the strategy, or the strategy itself
SECTIONS = (*schema.STRATEGIES, "dataset")


def named(config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a config with names in place of callables and other objects, and the objects by these names.

    UserError for an object that a config has no use for.
    """
    objects: dict[str, Any] = {}

    def replaced(path: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: replaced(f"{path}_{key}" if path else str(key), inner) for key, inner in value.items()}
        if callable(value):
            name = re.sub(r"\W", "_", path.removesuffix("_name").removesuffix("_mode"))
            while objects.get(name, value) is not value:  # patterns of tensors differ in other characters, too
                name += "_"
            objects[name] = value
            return f"{script.__name__}:{name}"
        if isinstance(value, list | tuple):
            return [replaced(f"{path}_{number}", inner) for number, inner in enumerate(value)]
        return _plain(value)

    spelled = {key: _spelled(key, value) if key in SECTIONS else value for key, value in config.items()}
    return replaced("", spelled), objects


def _plain(value: Any) -> Any:
    """Return a value as YAML has it: NumPy's numbers and paths are converted."""
    return value.item() if isinstance(value, np.generic) else str(value) if isinstance(value, Path) else value


def _spelled(section: str, value: Any) -> Any:
    """Return a section's value as keys and values where it is an object that has them."""
    key = schema.STRATEGIES[section]
    if section == "model" and _is_torch(value):
        return {"name": "torch", "build": value}
    if (
        section == "model"
        and isinstance(value, list | tuple)
        and value
        and all(hasattr(layer, "forward") for layer in value)
    ):
        return {key: Copies(value)}
    if isinstance(value, optim.CompiledOptimizer) and type(value).__module__.startswith(f"{optim.__name__}."):
        names = inspect.signature(type(value)).parameters
        return {key: type(value).__name__.lower(), **{name: getattr(value, name) for name in names}}
    if section == "optimizer" and not callable(value) and hasattr(value, "update") and hasattr(value, "lr"):
        return {key: Copies(value)}
    if callable(value):
        return {key: value}
    if value is None or isinstance(value, str | Mapping):
        return value
    takes = "layers" if section == "model" else "an object"
    raise UserError(
        f"{section} must be a name, keys and values, or a function or class that makes {takes}, got "
        f"{type(value).__name__}; give one of these"
    )


def _is_torch(value: Any) -> bool:
    """Return True for a class of ``torch.nn.Module``, or a function that needs no shapes, as psframe's own have."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    if isinstance(value, torch.nn.Module):
        raise UserError(
            f"model must be what makes a torch.nn.Module, got a {type(value).__name__} that is made; give its class, "
            "or lambda: ..."
        )
    if inspect.isclass(value):
        return issubclass(value, torch.nn.Module)
    if not callable(value):
        return False
    try:
        inspect.signature(value).bind(None, None)
    except (TypeError, ValueError):
        return True
    return False


def restored(config: Any, objects: Mapping[str, Any]) -> Any:
    """Return a config of :func:`named` with the objects in place of their names, as far as they are there."""
    prefix = f"{script.__name__}:"
    if isinstance(config, Mapping):
        return {key: restored(value, objects) for key, value in config.items()}
    if isinstance(config, list):
        return [restored(value, objects) for value in config]
    if isinstance(config, str) and config.startswith(prefix):
        return objects.get(config.removeprefix(prefix), config)
    return config


class Copies:
    """Function that returns a copy of an object, whatever it is given."""

    def __init__(self, of: Any):
        self.of = of

    def __call__(self, *given: Any) -> Any:
        return deepcopy(self.of)


def pickled(what: str, value: Any) -> bytes:
    """Return an object as bytes; UserError if it cannot be sent to ranks.

    What the script itself or a notebook's cell defines is sent whole, for which cloudpickle is needed.
    """
    try:
        import cloudpickle

        dumps: Callable[[Any], bytes] = cloudpickle.dumps
    except ImportError:
        dumps = pickle.dumps
    try:
        data = dumps(value)
    except Exception as error:  # an object's own code may raise anything
        raise UserError(
            f"{what} must be an object that can be pickled, got {type(error).__name__}: {reason(error)[:300]}; let a "
            "function make what cannot be"
        ) from None
    if dumps is pickle.dumps and b"__main__" in data:
        raise UserError(
            f"{what} is defined in the script itself, for which ranks need cloudpickle, got none; pip install "
            "psframe[script], or define it in a module"
        )
    return data


def unpickled(what: str, data: bytes) -> Any:
    """Return an object from bytes of :func:`pickled`; UserError if this process cannot make it."""
    try:
        return pickle.loads(data)
    except Exception as error:  # an object's own code may raise anything
        raise UserError(
            f"{what} must be one that ranks can make, got {type(error).__name__}: {reason(error)[:300]}; define it in "
            "the script, or in a module that ranks can import"
        ) from None


def states(callbacks: Sequence[Any]) -> bytes:
    """Return the attributes of callbacks as bytes for :func:`restore`; those that cannot be sent are told of."""
    return pickle.dumps([_state(callback) for callback in callbacks])


def _state(callback: Any) -> bytes:
    try:
        return pickled("a callback's state", getattr(callback, "__dict__", {}))
    except UserError:
        LOG.warning(f"the script does not get what {type(callback).__name__} has ended with: it cannot be sent")
        return b""


def restore(callbacks: Sequence[Any], data: bytes) -> None:
    """Give callbacks the attributes that their copies ended with."""
    for callback, state in zip(callbacks, pickle.loads(data) if data else [], strict=False):
        if state:
            getattr(callback, "__dict__", {}).update(unpickled("a callback's state", state))
