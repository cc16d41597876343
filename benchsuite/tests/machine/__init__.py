"""Tests: clock, load, memory, provenance."""
