"""Tests: runs beside each other."""
