"""Definition of a model (:class:`Model`): a function from the data's shape to a list of layers.

A model holds no state. psframe passes its positional parameters; its keyword-only parameters are keys of the config's
``model`` section.
"""

from typing import Protocol

from psframe.errors import UserError
from psframe.nn.base import Layer, Shape

IMAGES = (
    *("lenet", "cifar_quick", "alexnet", "alexnet_small", "vgg16", "vgg16_small", "vgg16_bn_small"),
    *("resnet8", "resnet18", "resnet20", "mobilenet_small"),
)
SEQUENCES = ("har_cnn", "har_resnet")


class Model(Protocol):
    """Model with its keyword-only parameters, if any, already bound."""

    def __call__(self, input_shape: Shape, n_classes: int) -> list[Layer]:
        """Return the layers for samples of ``input_shape``, (C, H, W) or (C, T); the last one returns (n_classes,)."""


def need_image(model: str, input_shape: Shape) -> None:
    """Raise UserError if ``input_shape`` is not (C, H, W)."""
    _need(model, input_shape, 3, "images (C, H, W)")


def need_sequence(model: str, input_shape: Shape) -> None:
    """Raise UserError if ``input_shape`` is not (C, T)."""
    _need(model, input_shape, 2, "sequences (C, T)")


def _need(model: str, input_shape: Shape, length: int, what: str) -> None:
    if len(input_shape) != length:
        fitting = {3: IMAGES, 2: SEQUENCES}.get(len(input_shape), ())
        fix = f"choose one of {', '.join(fitting)}" if fitting else "mend the dataset"
        fix += ", or store grey images as (n, 1, H, W)" if len(input_shape) == 2 else ""
        raise UserError(f"model {model} takes {what}, got samples of shape {tuple(input_shape)}; {fix}")
