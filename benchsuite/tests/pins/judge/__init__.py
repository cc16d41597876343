"""Pins: judge."""
