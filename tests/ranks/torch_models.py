"""Configs' keys for a user's modules in PyTorch, and whether PyTorch is there."""

import unittest
from importlib.util import find_spec

NET = "model={name: torch, build: 'tests.helpers.torch_nets:ResNet', arguments: {dropout: 0.3}}"
ROW = "model={name: torch, build: 'tests.helpers.torch_nets:row'}"
ATTENTION = "model={name: torch, build: 'tests.helpers.torch_nets:Attention'}"
SHORT = ("dataset.limit=101", "train.threads=1")


def is_missing():
    """Return whether there is no PyTorch."""
    return find_spec("torch") is None


def need_torch():
    """Skip a case where there is no PyTorch."""
    if is_missing():
        raise unittest.SkipTest("PyTorch, whose modules these are, is not installed")
