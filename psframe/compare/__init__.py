"""Comparison of runs: a grid of settings, each trained under mpirun or on virtual ranks, in one table."""
