"""Pins: specdec."""
