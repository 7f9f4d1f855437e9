"""Facts of the backend of PyTorch, as ``python -m psframe.doctor --torch`` gives them, and their lines."""

import sys
from types import SimpleNamespace

import pytest

from psframe.torch import facts

torch = pytest.importorskip("torch", reason="PyTorch, which the doctor looks at, is not installed")


@pytest.mark.parametrize(
    ("names", "needs", "words"),
    [
        (["psframe"], False, "`import torch` is enough"),
        (["other", "psframe"], False, "`import torch` is enough"),
        ([], True, "after `import psframe.torch`"),
        (["other"], True, "after `import psframe.torch`"),
    ],
)
def test_backend_needs_an_import_where_pytorch_does_not_find_it(monkeypatch, names, needs, words):
    installed = {"torch.backends": [SimpleNamespace(name=name) for name in names], "console": [object()]}
    monkeypatch.setattr(facts, "entry_points", lambda group: installed[group])
    found = facts.facts(3)
    assert (found["needs_import"], found["error"], found["pytorch"]) == (needs, None, torch.__version__)
    _, first, *_ = facts.lines(found)
    assert first == f"PyTorch      {torch.__version__}, {words}"


def test_facts_of_a_group_are_those_of_its_ranks(monkeypatch):
    meeting = pytest.importorskip("psframe.torch.meeting")
    monkeypatch.setattr(meeting, "size_of", lambda n_ranks: (7, 250_000 * n_ranks))
    found = facts.facts(3)
    assert found["group_bytes"] == {"2": 500_000, "8": 2_000_000, "64": 16_000_000}
    assert found["spins_up_to_ranks"] == 3
    shown = "\n".join(facts.lines(found))
    assert "at most: 0.5 MB for 2 ranks, 2.0 MB for 8 ranks, 16.0 MB for 64 ranks\n" in shown
    assert "spin shortly up to 3 ranks" in shown
    assert all(lack in shown for lack in found["lacks"])


def test_pytorch_that_is_missing_or_without_ranks_is_told(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_available", lambda: False)
    found = facts.facts(3)
    assert found == {"pytorch": torch.__version__, "error": "this build of PyTorch has no torch.distributed"}
    monkeypatch.setitem(sys.modules, "torch", None)
    missing = facts.facts(3)
    assert missing["pytorch"] is None
    for each in (found, missing):
        assert facts.lines(each) == ["", f"PyTorch      {each['error']}; pip install torch"]
