"""Tests: pages and their commands."""
