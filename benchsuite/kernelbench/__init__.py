"""Kernels: cases, agreement with the reference, shapes, timings, caches."""
