"""Training command: ``mpirun -n N python -m psframe.train CONFIG [key.path=value ...]``.

Nothing is imported here: the command limits threads before NumPy is loaded.
"""
