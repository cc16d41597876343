"""Engines of others on this machine: their environments, their servers, recordings of these (docs/engines.md)."""
