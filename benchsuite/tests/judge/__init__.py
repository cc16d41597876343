"""Tests: judges of outputs, against planted faults."""
