"""Networks that ranks hold against each other; ranks with other ones are in tests/ranks/case_consistency.py."""

import os
import subprocess
import sys

import numpy as np
import pytest

from psframe.errors import UserError
from psframe.nn.activations import Dropout, Flatten, ReLU
from psframe.nn.conv import Conv2d
from psframe.nn.dense import Dense
from psframe.nn.description import description
from psframe.nn.network import Network
from psframe.nn.pool import MaxPool2d


def network(*layers):
    return Network([*layers, Flatten(), Dense(3)], (1, 6, 6), 3).describe()


def test_description_changes_with_each_change_alone():
    def base(**changes):
        of = {"width": 4, "pad": 1, "pool": 2, "stride": 2, "p": 0.1} | changes
        return network(
            Conv2d(of["width"], 3, padding=of["pad"]), MaxPool2d(of["pool"], of["stride"]), ReLU(), Dropout(of["p"])
        )

    assert base() == base()
    changed = [base(width=5), base(pad=0), base(pool=3), base(stride=1), base(p=0.2)]
    assert len({tuple(each) for each in (base(), *changed)}) == 6
    assert network(ReLU(), MaxPool2d(2)) != network(MaxPool2d(2), ReLU())


class Own:
    """Layers of a user's own keep what they like."""

    def __init__(self, **kept):
        self.__dict__.update(kept)


def test_description_sees_arrays_and_nothing_of_the_process():
    assert description(Own(a=np.zeros(3))) != description(Own(a=np.array([0, 0, 1.0])))
    assert description(Own(a={"x": [1, (2, 3.0)]})) != description(Own(a={"x": [1, (2, 3.5)]}))
    assert description(Own(a=object(), b=len, c=Own())) == description(Own(a=object(), b=len, c=Own()))
    assert description(Own(a=Own(), f=lambda: 1)) == description(Own(a=Own(), f=lambda: 1))
    loop = Own()
    loop.self = [loop]
    assert "Own" in description(loop)


def test_description_of_sets_does_not_depend_on_the_hash_seed():
    code = (
        "from psframe.nn.description import description as d; "
        "print(d(type('T', (), {'__init__': lambda s: s.__dict__.update(a={'x', 'yy', 'zzz'})})()))"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(said) == 1
    assert "zzz" in said.pop()


def test_layer_that_stands_twice_is_refused():
    relu = ReLU()
    with pytest.raises(UserError, match="the same ReLU as layers 1 and 3; make one for each place"):
        Network([Conv2d(4, 3), relu, MaxPool2d(2), relu, Flatten(), Dense(3)], (1, 6, 6), 3)
