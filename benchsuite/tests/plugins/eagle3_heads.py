"""Small EAGLE-3 heads of every convention, for the tests that need one."""

from __future__ import annotations

from dataclasses import replace

import torch

from specdec_plugins.heads.eagle3_head import Eagle3Head, Eagle3Shape

SHAPE = Eagle3Shape(
    hidden=16,
    intermediate=20,
    heads=4,
    heads_kv=2,
    head_dim=6,
    eps=1e-5,
    states=3,
    state_size=10,
    vocabulary=11,
)
SHAPES = {
    "plain": SHAPE,
    "normed residual": replace(SHAPE, norm_before_residual=True),
    "one norm of all states": replace(SHAPE, fusion_norm="all"),
    "a norm of each state": replace(SHAPE, fusion_norm="each"),
    "EAGLE 3.1": replace(SHAPE, norm_output=True, fusion_norm="each"),
    "Qwen3's layer": replace(SHAPE, head_norms=True, bias=True),
    "every bias": replace(SHAPE, bias=True, out_bias=True, wide_bias=True, layers=2),
    "two layers": replace(SHAPE, layers=2),
    "two of Qwen3's layers": replace(SHAPE, layers=2, head_norms=True),
}
INVERSE = 1.0 / 100.0 ** (torch.arange(0, 6, 2, dtype=torch.float64) / 6)


def head_of(shape: Eagle3Shape) -> Eagle3Head:
    """A head whose every parameter is random, so that each has an effect."""
    torch.manual_seed(3)
    head = Eagle3Head(shape, INVERSE, magnitude=1.25).double().requires_grad_(False)
    for parameter in head.parameters():
        parameter.copy_(torch.randn_like(parameter) * 0.5 + (parameter.dim() == 1 or len(parameter) == 3))
    return head
