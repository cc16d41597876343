"""Strategies of the engine under load: many requests at once, or at random times (docs/load.md)."""
