"""Report of what a machine has for psframe: MPI, cores, memory tiers, and what each placement does there."""
