"""Samples of a run: the dataset in shared memory of each node, shares of a step, batches."""
