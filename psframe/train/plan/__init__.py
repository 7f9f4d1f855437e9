"""Plan of a run: a config that was checked against the ranks, the machine and the dataset."""
