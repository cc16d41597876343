"""Tests: the engine."""
