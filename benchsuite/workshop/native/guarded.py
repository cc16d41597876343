"""Tensors between strips that belong to nobody: what a kernel reads or writes outside of a tensor shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

STRIP = 64
"""Numbers before and after a tensor that belong to nobody: a cache line or more, so that tensors stay aligned."""


class Guarded(TorchDispatchMode):
    """Every tensor made in it lies between two strips of NaN, or of the least number where there is none.

    A kernel that uses a number outside gives another result; one that writes there is told by ``written``.

    Example: ``with Guarded() as guard: made = torch.empty(3)``, then ``assert not guard.written()``
    """

    MADE = ("aten::empty.memory_format", "aten::empty_like", "aten::new_empty", "aten::_to_copy", "aten::clone")

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._whole: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        made = func(*args, **kwargs or {})
        if func.name() not in self.MADE or not made.numel() or not made.is_contiguous():
            return made
        whole = made.new_full((made.numel() + 2 * STRIP,), _nobodys(made.dtype))
        self._whole.append(whole)
        return whole[STRIP:-STRIP].view(made.shape).copy_(made)

    def written(self) -> list[int]:
        """Return the sizes of the tensors beside which something was written."""
        return [
            len(whole) - 2 * STRIP
            for whole in self._whole
            for strip in (whole[:STRIP], whole[-STRIP:])
            if not torch.equal(bits(strip), bits(torch.full_like(strip, _nobodys(whole.dtype))))
        ]


def _nobodys(dtype: torch.dtype) -> float:
    if dtype.is_floating_point:
        return float("nan")
    return 1 if dtype == torch.bool else torch.iinfo(dtype).min


def bits(tensor: Tensor) -> Tensor:
    """Return a tensor's bytes: NaN equals itself in them."""
    return tensor.contiguous().view(torch.uint8)
