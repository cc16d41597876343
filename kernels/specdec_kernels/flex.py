"""The flex backend: torch's FlexAttention over the arena, to set the triton backend's attention beside."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from specdec.hookspecs import hookimpl
from specdec.interfaces import BackendFactory
from specdec.packed import Weight
from specdec_kernels.build import forbidden
from specdec_kernels.reference import Reference


@cache
def _flex_attention(compiled: bool) -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention  # imports torch's compiler, which takes a second

    # Shapes repeat, so that each has a kernel of its own; few queries take FlexAttention's decode path.
    attend: Callable[..., Any] = flex_attention
    return torch.compile(attend, dynamic=False) if compiled else attend


class Flex(Reference):
    """``tree_attention`` by FlexAttention, compiled at the first call of each shape; only if it is named.

    ``compiled=False`` computes it op by op, on any device: that is for tests. It reads every cell of the mask.

    Example: ``--specdec-backend flex`` on CUDA; ``pytest -m kernels`` times it there.
    """

    name = "flex"
    priority = 4
    devices = ("cuda",)

    def __init__(self, compiled: bool = True) -> None:
        self._compiled = compiled
        self._device = "cuda" if compiled else None

    def missing(self) -> str | None:
        """The reason: compiled kernels are forbidden, or there is no CUDA device."""
        if forbidden() or torch.cuda.is_available():
            return forbidden()
        return "there is no CUDA device"

    def takes(self, op: str, *tensors: Weight) -> bool:
        """See ``Backend``; queries in float32 or half precision over keys of the same dtype."""
        if op != "tree_attention" or len(tensors) > 2:  # sinks are left to the reference
            return False
        query, keys = tensors
        return (
            isinstance(query, Tensor)
            and isinstance(keys, Tensor)
            and query.dtype == keys.dtype != torch.float64
            and self._device in (None, query.device.type)
        )

    def tree_attention(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor,
        scaling: float,
        softcap: float | None,
        used: Tensor | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """softmax(scaling · q kᵀ + mask) v with grouped heads. A slot that sees nothing gives zeros."""

        def biased(score: Tensor, row: Tensor, head: Tensor, slot: Tensor, cell: Tensor) -> Tensor:
            if softcap is not None:
                score = torch.tanh(score / softcap) * softcap
            return score + mask[row, 0, slot, cell]

        mask = mask.expand(len(query), -1, -1, -1)
        grouped = query.shape[1] != keys.shape[1]
        attend = _flex_attention(self._compiled)
        attended: Tensor = attend(query, keys, values, score_mod=biased, scale=scaling, enable_gqa=grouped)
        return attended.transpose(1, 2)


@hookimpl
def specdec_register_backends(register: Callable[[str, BackendFactory], None]) -> None:
    """Register ``flex``."""
    register("flex", Flex)
