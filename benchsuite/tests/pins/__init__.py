"""Tests: what restates the code, where nothing else covers it."""
