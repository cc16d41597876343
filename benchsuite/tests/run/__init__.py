"""Tests: pytest's side of a run."""
