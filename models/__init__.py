"""The networks that can be trained, by name; :mod:`psframe.models.base` says what a model is.

A new one: copy ``lenet.py``, and add a line to ``BUILT_IN`` (and its name to ``IMAGES`` or ``SEQUENCES`` in
``base.py``).
"""

BUILT_IN = {
    "lenet": "psframe.models.lenet:lenet",
    "cifar_quick": "psframe.models.cifar_quick:cifar_quick",
    "alexnet": "psframe.models.alexnet:alexnet",
    "alexnet_small": "psframe.models.alexnet:alexnet_small",
    "vgg16": "psframe.models.vgg16:vgg16",
    "vgg16_small": "psframe.models.vgg16:vgg16_small",
    "har_cnn": "psframe.models.har_cnn:har_cnn",
}

#: and one that a user has written in PyTorch
TABLE = {**BUILT_IN, "torch": "psframe.models.torch_module:torch_module"}
