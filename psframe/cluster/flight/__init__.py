"""Flight recorder of a job: a keeper process on each node, and what it writes when a job is stuck or a rank dies."""

KEEPER = "psframe.cluster.flight.keeper"  #: of a keeper's command line
