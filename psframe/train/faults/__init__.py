"""Faults of a run: non-finite gradients, flipped bits, late ranks; and their injection for tests."""
