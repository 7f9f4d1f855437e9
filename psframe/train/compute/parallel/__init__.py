"""A network cut across ranks: a pipeline of stages, of which there may be several replicas, side by side."""
