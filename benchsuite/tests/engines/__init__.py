"""Tests: environments, servers and recordings of engines of others. None needs such an engine."""
