"""The machine: clock, measured limits, provenance."""
