"""Training command: ``mpirun -n N python -m psframe.train CONFIG [key.path=value ...]``.

This module imports nothing: the command limits threads before NumPy is loaded.
"""
