"""Pins: measure."""
