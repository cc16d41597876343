"""Pins: machine."""
