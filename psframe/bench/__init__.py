"""Benchmarks as commands: ``python -m psframe.bench NAME``. Each prints tables and writes JSON."""
