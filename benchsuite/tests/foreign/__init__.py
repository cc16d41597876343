"""Tests: files of other benchmarks."""
