"""Jobs of forked ranks that the tests of a file share a process for, whose imports take longer than most of them."""

import json
from functools import cache

import pytest

from tests.torch.started import forked


@pytest.fixture(scope="session")
def told_of(request, tmp_path_factory):
    """Return what runs the jobs of all chosen tests of a file, once: what they ended with, by job."""

    @cache
    def run(path):
        found = {}
        for item in request.session.items:
            if item.path == path and "jobs" in getattr(item, "fixturenames", ()):
                found |= {json.dumps(each): each for each in item.callspec.params["jobs"]}
        told = forked(tmp_path_factory.mktemp("forked") / "jobs", *found.values())
        return dict(zip(found, told, strict=True))

    return run


@pytest.fixture
def told(request, told_of, jobs):
    """Return what each of the test's ``jobs`` ended with."""
    every = told_of(request.node.path)
    return [every[json.dumps(each)] for each in jobs]
