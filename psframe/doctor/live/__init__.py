"""Ranks of a job that trains, as they are now: in a terminal, or on a page of this host."""
