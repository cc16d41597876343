"""Tests: a run's folder."""
