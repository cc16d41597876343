"""Tests: what is run, and its figures."""
