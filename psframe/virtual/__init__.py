"""Virtual ranks: the ranks of a job as threads of one process, in an order and at times that a scheduler chooses."""
