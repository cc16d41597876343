"""Weights in the order in which a processor with vectors reads them: tiles of 16 outputs, input after input."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec.quantised import GROUP, Quantised

TILE = 16
"""Number of outputs whose weights of one input lie side by side."""


@dataclass(frozen=True, eq=False)
class Packed:
    """A copy of a matrix [N, K] as ceil(N / 16) tiles; outputs past N are 0.

    ``data``: float32 [T, K, 16]; bfloat16 [T, ceil(K / 2), 16, 2], two inputs of an output side by side; int8
    [T, K, 16]; 4 bits, uint8 [T, K / 8, 16, 4], eight inputs of an output side by side, the first of two in the low
    four bits of their byte. ``scale``: None for floats, float32 [T * 16] for int8, float16 [T, K / 32, 2, 16] for 4
    bits: the scales of a group of 32 inputs, then its offsets.
    ``shape``: (N, K).

    Example: ``Packed.of(torch.randn(20, 64)).data.shape`` is ``[2, 64, 16]``.
    """

    data: Tensor
    scale: Tensor | None
    shape: tuple[int, int]

    @staticmethod
    def of(weight: Tensor | Quantised) -> Packed:
        """Pack a matrix of float32, of bfloat16 or of codes; TypeError for other dtypes."""
        outputs, inputs = weight.shape
        if isinstance(weight, Quantised):
            if weight.offset is None:
                return Packed(_tiles(weight.codes), F.pad(weight.scale[:, 0], (0, -outputs % TILE)), (outputs, inputs))
            ends = torch.stack([_tiles(weight.scale), _tiles(weight.offset)], dim=2).half()
            codes = weight.codes.view(outputs, -1, GROUP // 2)
            words = torch.cat([codes & 15, codes >> 4], dim=2).view(outputs, -1, 4, 2)
            return Packed(_tiles(words[..., 0] | words[..., 1] << 4), ends, (outputs, inputs))
        weight = weight.detach()
        if weight.dtype == torch.float32:
            return Packed(_tiles(weight), None, (outputs, inputs))
        if weight.dtype != torch.bfloat16:
            raise TypeError(f"a matrix of {weight.dtype} cannot be packed; expected float32, bfloat16 or Quantised")
        return Packed(_tiles(F.pad(weight, (0, inputs % 2)).unflatten(1, (-1, 2))), None, (outputs, inputs))

    @property
    def nbytes(self) -> int:
        """Bytes of the weights, scales and offsets."""
        return self.data.nbytes + (0 if self.scale is None else self.scale.nbytes)

    def dequantise(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The matrix [N, K] as floats."""
        outputs, inputs = self.shape
        if self.data.dtype == torch.bfloat16:
            rows = self.data.transpose(1, 2).flatten(0, 1).flatten(1)
        elif self.data.dtype == torch.uint8:
            assert self.scale is not None
            pairs = self.data.movedim(3, 2)
            codes = torch.stack([pairs & 15, pairs >> 4], dim=3).flatten(1, 3).float()
            groups = codes.unflatten(1, (-1, GROUP))
            scale, offset = self.scale.float().split(1, dim=2)
            values = groups * scale + offset
            rows = values.flatten(1, 2).transpose(1, 2).flatten(0, 1)
        else:
            rows = self.data.transpose(1, 2).flatten(0, 1)
            if self.scale is not None:
                rows = rows.float() * self.scale[:, None]
        return rows[:outputs, :inputs].to(dtype)


Weight = Tensor | Quantised | Packed
"""What ``linear`` multiplies with."""


def _tiles(matrix: Tensor) -> Tensor:
    """[N, K, …] as [T, K, 16, …]."""
    missing = matrix.new_zeros(-len(matrix) % TILE, *matrix.shape[1:])
    return torch.cat([matrix, missing]).view(-1, TILE, *matrix.shape[1:]).transpose(1, 2).contiguous()
