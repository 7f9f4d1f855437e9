"""Model of a user whose libraries warn on every rank: while it is made, and in a layer."""

import logging
import warnings

from mpi4py import MPI

from psframe.nn.activations import Flatten
from psframe.nn.base import BaseLayer
from psframe.nn.dense import Dense


class Warns(BaseLayer):
    """A layer that passes its input on."""

    def setup(self, input_shape, index):
        return input_shape

    def forward(self, x, state):
        warnings.warn("divided by a small number", RuntimeWarning, stacklevel=1)
        if MPI.COMM_WORLD.rank == 1:
            logging.getLogger("some.library").warning("a %s file", "slow")
        return x

    def backward(self, x, dy, state, need_dx):
        return dy


def model(input_shape, n_classes):
    warnings.warn("an option is old", FutureWarning, stacklevel=1)
    return [Flatten(), Warns(), Dense(n_classes)]
