"""Pins: workshop."""
