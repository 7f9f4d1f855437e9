"""Partition of a network across ranks: pipeline stages and shards of layers, in one or several replicas."""
