"""Tests: the gate."""
