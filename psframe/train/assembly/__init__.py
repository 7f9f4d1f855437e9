"""Construction of a run from its plan: memory, network, mode, collective."""
