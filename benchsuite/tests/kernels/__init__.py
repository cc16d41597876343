"""Tests: backends."""
