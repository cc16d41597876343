"""Tests: the kit, and what it enumerates."""
