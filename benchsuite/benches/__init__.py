"""What ``pytest -m kernels``, ``decoding`` and ``serving`` measure: figures, no tables."""
