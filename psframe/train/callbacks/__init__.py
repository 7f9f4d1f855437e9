"""Callbacks of a training run: what they may ask of it, how rank 0 calls them, and those that come with psframe."""
