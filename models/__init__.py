"""Table of the networks by name (``TABLE``); :mod:`psframe.models.base` defines a model.

To add one, copy ``lenet.py``, add a line to ``BUILT_IN``, and its name to ``IMAGES`` or ``SEQUENCES`` in ``base.py``.
"""

BUILT_IN = {
    "lenet": "psframe.models.lenet:lenet",
    "cifar_quick": "psframe.models.cifar_quick:cifar_quick",
    "alexnet": "psframe.models.alexnet:alexnet",
    "alexnet_small": "psframe.models.alexnet:alexnet_small",
    "vgg16": "psframe.models.vgg16:vgg16",
    "vgg16_small": "psframe.models.vgg16:vgg16_small",
    "vgg16_bn_small": "psframe.models.vgg16:vgg16_bn_small",
    "resnet8": "psframe.models.resnet:resnet8",
    "resnet18": "psframe.models.resnet:resnet18",
    "resnet20": "psframe.models.resnet:resnet20",
    "mobilenet_small": "psframe.models.mobilenet:mobilenet_small",
    "har_cnn": "psframe.models.har_cnn:har_cnn",
    "har_resnet": "psframe.models.har_resnet:har_resnet",
}

#: with the user's own model in PyTorch
TABLE = {**BUILT_IN, "torch": "psframe.models.torch_module:torch_module"}
