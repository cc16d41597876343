"""The quarter of an hour for which a GPU is there: three calls of ``python -m benchsuite.gpu_day`` (docs/gpu.md).

The command needs Python and torch, and no installation: ``checkout`` makes the files that entry points are read from.
"""
