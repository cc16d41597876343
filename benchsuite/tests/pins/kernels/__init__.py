"""Tests: pins of backends."""
