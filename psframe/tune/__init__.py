"""Search for the fastest way to train a config on this machine, by measuring."""
