"""Servers measured over HTTP (docs/serving.md)."""
