"""Ranks of a job: how they start, find their nodes, agree, wait for each other with a deadline, and end.

Nothing is imported here: :mod:`psframe.cluster.begin` limits threads before NumPy is loaded, and commands without ranks
must not load MPI.
"""
