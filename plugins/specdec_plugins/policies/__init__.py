"""Acceptance policies."""
