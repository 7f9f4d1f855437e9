"""Nodes whose processes end with the test."""

import os

import pytest

from tests.helpers.gates import Node
from tests.helpers.keepers import Job


@pytest.fixture
def start():
    """Start a node: ``start(n, wait, deadline_s, looks)``."""
    nodes = []
    yield lambda *arguments, **options: nodes.append(Node(*arguments, **options)) or nodes[-1]
    for process in (process for node in nodes for process in node.ranks):
        process.kill()
        process.communicate()


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Make a job; its processes end with the test."""
    jobs = []
    monkeypatch.chdir(tmp_path)
    yield lambda *arguments, **options: jobs.append(Job(tmp_path, *arguments, **options)) or jobs[-1]
    for made in jobs:
        made.close([*made.ends, *made.keepers])
        os.close(made.fd)
        for child in made.children:
            child.kill()
            child.communicate()
