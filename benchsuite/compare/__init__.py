"""Runs beside each other: what can be compared, what changed, and how it is shown."""
