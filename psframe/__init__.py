"""psframe: data-parallel training of small convolutional networks on many-core CPUs over MPI."""

__version__ = "0.1.0"
