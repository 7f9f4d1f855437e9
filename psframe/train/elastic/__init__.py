"""Changes of a running job: ranks that wait as spares join it, and others leave, between two steps."""
