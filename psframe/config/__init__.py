"""Readers of configs and files from users, with size limits and validation before use."""
