"""Compilation puts garbage collection off, and leaves it as it was: also where it fails, or calls for another. Inner
functions become code within their callers alone."""

import gc

import numba
import numpy as np
import pytest
from numba.core import event
from numba.core.errors import NumbaError

from psframe.nn.jit import _INNER, inline, inner, jit


class States(event.Listener):
    """Notes at the end of every compilation whether collection was on: before it is turned on again."""

    def __init__(self):
        self.seen = []

    def on_start(self, event):
        pass

    def on_end(self, event):
        self.seen.append(gc.isenabled())


@pytest.mark.parametrize("is_on", [True, False])
def test_collection_waits_for_a_compilation_and_is_as_before(is_on, monkeypatch, tmp_path):
    monkeypatch.setattr("psframe.nn.jit._FOLDER", str(tmp_path))  # where nothing has been compiled

    @inner
    def twice(x):
        return 2 * x

    def outer(x):
        return twice(x) + 1

    def wrong(x):
        return x.nothing_of_a_number

    was_on, states = gc.isenabled(), States()
    before = event._registered["numba:compile"]
    event._registered["numba:compile"] = [states, *before]
    try:
        (gc.enable if is_on else gc.disable)()
        assert jit(outer)(numba.float32(3)) == 7
        assert states.seen == [False, False], "the function, and the one that it calls"
        assert gc.isenabled() == is_on
        with pytest.raises(NumbaError):
            jit(wrong)(1)
        assert gc.isenabled() == is_on
    finally:
        event._registered["numba:compile"] = before
        (gc.enable if was_on else gc.disable)()


@pytest.mark.skipif("pipeline_class" not in _INNER, reason="this Numba compiles each function by itself")
@pytest.mark.parametrize("kind", [inner, inline])
def test_inner_functions_are_code_of_their_callers_alone(kind, monkeypatch, tmp_path):
    monkeypatch.setattr("psframe.nn.jit._FOLDER", str(tmp_path))

    @kind
    def twice(x):
        return 2 * x

    @kind
    def more(x, numbers):
        for at in range(len(numbers)):
            numbers[at] += twice(x)
        return len(numbers)

    def outer(x, numbers):
        return more(x, numbers) + twice(x)

    numbers = np.zeros(3)
    assert jit(outer)(1.5, numbers) == 6
    assert numbers.tolist() == [3, 3, 3]
    for function in (twice, more):
        (made,) = function.overloads.values()
        assert made.library._codegen._engine.is_symbol_defined(made.fndesc.llvm_func_name) is False
    again = jit(outer)
    assert again(1.5, numbers) == 6
    assert numbers.tolist() == [6, 6, 6]
    assert sum(again.stats.cache_hits.values()) == 1
