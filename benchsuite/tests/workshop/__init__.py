"""Tests: the project's own tools."""
