"""Nodes whose processes end with the test."""

import pytest

from tests.helpers.gates import Node


@pytest.fixture
def start():
    """Start a node: ``start(n, wait, deadline_s, looks)``."""
    nodes = []
    yield lambda *arguments, **options: nodes.append(Node(*arguments, **options)) or nodes[-1]
    for process in (process for node in nodes for process in node.ranks):
        process.kill()
        process.communicate()
