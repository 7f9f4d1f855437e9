"""Frameworks that train over process groups, on the backend "psframe": they end in what they end in with gloo."""

import importlib.util
import json

import pytest

from tests.helpers import torchrun
from tests.helpers.launcher import ROOT

pytest.importorskip("torch", reason="PyTorch, whose backend this is, is not installed: pip install -e .[torch]")

SCRIPTS = {"lightning": "lightning_fit.py", "accelerate": "accelerate_loop.py"}


@pytest.mark.full
@pytest.mark.parametrize("framework", SCRIPTS)
def test_framework_trains_as_with_gloo(framework):
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed: pip install {framework}")
    found = {}
    for backend in ("psframe", "gloo"):
        script = ROOT / "tests" / "torch" / "scripts" / SCRIPTS[framework]
        ended = torchrun.run(2, [script, backend], 300)
        assert ended.status == 0, ended
        (line,) = [json.loads(line) for line in ended.out.splitlines() if line.startswith('{"backend"')]
        assert line["backend"] == backend
        (found[backend],) = line["cases"].values()
        assert len(set(found[backend]["parameters"])) == 1, "ranks have different parameters"
    assert found["psframe"] == found["gloo"]
