"""Tests: predictions and the advisor."""
