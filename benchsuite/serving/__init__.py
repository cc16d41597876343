"""Servers measured over HTTP, ``pytest -m serving``: under load, in turn, with what went wrong counted by kind."""
