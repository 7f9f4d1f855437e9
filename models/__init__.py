"""The networks that can be trained, by name; :mod:`psframe.models.base` says what a model is.

A new one: copy ``lenet.py``, and add a line here (and its name to ``IMAGES`` or ``SEQUENCES`` in ``base.py``).
"""

TABLE = {
    "lenet": "psframe.models.lenet:lenet",
    "cifar_quick": "psframe.models.cifar_quick:cifar_quick",
    "har_cnn": "psframe.models.har_cnn:har_cnn",
}
