"""A GPU for a quarter of an hour: three calls of ``python -m benchsuite.workshop.gpu_day`` (docs/gpu.md).

The command needs Python and torch, and no installation: ``checkout`` makes the files that entry points are read from.
"""
