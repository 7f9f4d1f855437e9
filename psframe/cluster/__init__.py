"""Ranks of a job (:class:`psframe.cluster.cluster.Cluster`): startup, nodes, agreement, waits with a deadline, and end.

This module imports nothing: :mod:`psframe.cluster.begin` limits threads before NumPy is loaded, and commands without
ranks must not load MPI.
"""
