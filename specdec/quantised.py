"""Weights in 8 or 4 bits; the arithmetic stays in the dtype of the activations."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specdec.errors import SpecdecError

GROUP = 32
"""Number of inputs that share one scale and one offset in 4 bits."""

MOST = torch.finfo(torch.float16).max
"""The largest weight that 4 bits can hold."""


@dataclass(frozen=True)
class Quantised:
    """A matrix [N, K] in integer codes: w = code · scale (8 bits), w = code · scale + offset (4 bits).

    ``codes``: 8 bits, int8 [N, K] in -127 … 127; 4 bits, uint8 [N, K / 2], where byte j of a group of 32
    holds input j in its low and input j + 16 in its high four bits. ``scale``: float32 [N, 1] or [N, K / 32];
    ``offset``: None or float32 like ``scale``. Those of 4 bits are numbers of float16, as in files of llama.cpp.

    Example: ``Quantised.of(torch.randn(8, 64), 8).dequantise().shape`` is ``[8, 64]``.
    """

    codes: Tensor
    scale: Tensor
    offset: Tensor | None

    @staticmethod
    def of(weight: Tensor, bits: int) -> Quantised:
        """Round a matrix to the nearest codes.

        SpecdecError for 4 bits if K is not a multiple of 32, and for numbers that float16 has not.
        """
        wide = weight.detach().float()
        if bits == 8:
            scale = (wide.abs().amax(dim=1, keepdim=True) / 127).clamp(min=1e-30)
            return Quantised((wide / scale).round().to(torch.int8), scale, None)
        rows, inputs = wide.shape
        if inputs % GROUP:
            raise SpecdecError(f"a weight of {inputs} inputs cannot be put into groups of {GROUP} for int4; use int8")
        groups = wide.view(rows, -1, GROUP)
        low, high = groups.amin(dim=2, keepdim=True), groups.amax(dim=2, keepdim=True)
        if not (largest := float(wide.abs().max())) <= MOST:
            raise SpecdecError(
                f"a weight of {largest:g} cannot be put into int4, whose scales and offsets are float16, up to "
                f"{MOST:g}; use int8"
            )
        scale, low = ((high - low) / 15).half().float(), low.half().float()
        codes = ((groups - low) / scale.clamp(min=1e-30)).round().clamp(0, 15).to(torch.uint8)
        packed = codes[..., : GROUP // 2] | (codes[..., GROUP // 2 :] << 4)
        return Quantised(packed.reshape(rows, -1), scale[..., 0].contiguous(), low[..., 0].contiguous())

    @property
    def bits(self) -> int:
        """8 or 4."""
        return 8 if self.offset is None else 4

    @property
    def device(self) -> torch.device:
        """The device of the codes."""
        return self.codes.device

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K), outputs and inputs."""
        rows, columns = self.codes.shape
        return rows, columns * 8 // self.bits

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scales and offsets."""
        return sum(t.numel() * t.element_size() for t in (self.codes, self.scale, self.offset) if t is not None)

    def dequantise(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The matrix [N, K] that the codes represent, as floats."""
        if self.offset is None:
            return (self.codes.float() * self.scale).to(dtype)
        packed = self.codes.view(self.codes.shape[0], -1, GROUP // 2)
        codes = torch.cat([packed & 15, packed >> 4], dim=2).float()
        return (codes * self.scale[..., None] + self.offset[..., None]).flatten(1).to(dtype)
