"""Pins: plugins."""
