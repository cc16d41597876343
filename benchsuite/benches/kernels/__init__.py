"""Timings of every op beside their bounds, and of caches."""
