"""Report of a machine's resources for psframe: MPI, cores, memory tiers, and the effect of each placement."""
