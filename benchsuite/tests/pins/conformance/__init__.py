"""Tests: pins of the kit."""
