"""Tests: benchmarks of decoding and of servers."""
