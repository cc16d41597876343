"""K, the proposals of a step, that are tried."""

from __future__ import annotations

KS = (0, 1, 2, 3, 4, 6, 8, 12, 15)
"""K that are probed, predicted, suggested and drawn; 0 is plain decoding.

The last has a window of 16 slots, the widest for which the kernels read the weights only once. Between the others a
speedup hardly bends: each is at most twice the one before."""
