"""A head that was read from a file, on its target's device and in a dtype that goes with the target's."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn

N = TypeVar("N", bound=nn.Module)


def placed(head: N, device: torch.device, dtype: torch.dtype) -> N:
    """The head itself, its tensors moved. Floats get the target's dtype, but beside float32 matrices in half precision
    stay as they are: they are read in half the time, and nothing is rounded. Buffers of one axis keep their dtype.

    Example: ``placed(head, env.target.device, env.target.dtype)``
    """

    def moved(tensor: Tensor) -> Tensor:
        stays = dtype == torch.float32 and tensor.dim() > 1 and tensor.dtype != torch.float64
        return tensor.to(device) if stays or not tensor.is_floating_point() else tensor.to(device, dtype)

    for module in head.modules():
        for name, weight in [*module.named_parameters(recurse=False)]:
            setattr(module, name, nn.Parameter(moved(weight.detach()), requires_grad=False))
        for name, held in [*module.named_buffers(recurse=False)]:
            setattr(module, name, moved(held) if held.dim() > 1 else held.to(device))
    return head
