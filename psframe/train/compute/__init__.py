"""Forward and backward passes of a rank: on the full network, in blocks, or on a stage or shard."""
