"""Tests: pins of the gate."""
