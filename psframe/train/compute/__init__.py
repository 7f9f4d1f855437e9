"""Forward and backward passes of a rank: by itself, in blocks, or as a part of a pipeline or shard."""
