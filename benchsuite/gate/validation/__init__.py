"""Validation of the gate: it makes launches, draws comparisons from them, and counts wrong verdicts."""
