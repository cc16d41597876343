"""Engines of others as peers, one a file."""
