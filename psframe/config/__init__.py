"""Configs and files from users: read within bounds, and checked before they are used."""
