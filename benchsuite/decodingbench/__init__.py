"""Decoding as users run it, as ratios of arms that alternate: `pytest -m decoding`."""
