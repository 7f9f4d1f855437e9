"""Modules that are imported while Python's collector pauses."""

import gc
import sys
from importlib import import_module

import pytest

from psframe.cluster import begin


@pytest.fixture(autouse=True)
def thawed():
    yield
    gc.unfreeze()
    gc.enable()


def test_collector_pauses_and_passes_by_what_was_imported(tmp_path, monkeypatch):
    (tmp_path / "many_objects.py").write_text("held = [[] for _ in range(1000)]\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = gc.get_freeze_count()
    with begin.importing():
        assert not gc.isenabled()
        import_module("many_objects")
    assert gc.isenabled()
    assert gc.get_freeze_count() >= before + 1000
    sys.modules.pop("many_objects")


def test_nothing_is_kept_for_ever_where_nothing_was_imported():
    """A program that trains again and again in one process does not grow by what it left behind each time."""
    before = gc.get_freeze_count()
    with begin.importing():
        pass
    assert gc.get_freeze_count() == before


def test_collector_is_on_again_behind_an_import_that_fails():
    with pytest.raises(ModuleNotFoundError), begin.importing():
        import_module("psframe.no_such_module")
    assert gc.isenabled()


def test_collector_that_was_off_stays_off():
    gc.disable()
    with begin.importing():
        pass
    assert not gc.isenabled()
