"""Noise that is a function of its key.

A token is drawn as argmax(logits + Gumbel(key, token id)). The Gumbel's bits are SplitMix64 (Steele, Lea, Flood,
OOPSLA 2014) of a key made from (seed, request, position, purpose, draw), so a draw does not depend on the batch, the
device or earlier draws. An inverse CDF is not used, because a difference of 5e-5 between two float32 forwards moves
every boundary of a CDF, but changes the argmax only near a tie.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specdec.changes import gone

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise gone(__name__, name)


_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15, SplitMix64's increment, as int64
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB

NOISE_RANGE = 26.1
"""Largest minus smallest Gumbel value of 32 bits: a token this far below the top logit cannot be drawn."""


class Purpose(IntEnum):
    """The purpose of a draw. Draws of different purposes at one position never share noise."""

    TARGET = 0
    DRAFT = 1
    ACCEPT = 2
    RESIDUAL = 3


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64; torch has only the arithmetic shift."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def mix(x: Tensor) -> Tensor:
    """SplitMix64's finaliser on int64, element by element: a bijection that spreads every bit."""
    x = (x ^ _shift(x, 30)) * _MIX_1
    x = (x ^ _shift(x, 27)) * _MIX_2
    return x ^ _shift(x, 31)


def stream(seed: Tensor, request: Tensor) -> Tensor:
    """int64 keys of (seed, request), made once when a row is admitted."""
    return mix(mix(seed + _GOLDEN) + request * _GOLDEN)


def key(stream: Tensor, position: Tensor, purpose: Purpose | Tensor, draw: int | Tensor = 0) -> Tensor:
    """int64 [B, W] keys of (stream [B], position [B, W], purpose, draw); ``draw``, an int or [B, W], is below 2**32.

    A tensor of purposes [P, 1, 1] gives [P, B, W].
    """
    return mix(mix(stream[:, None] + position * _GOLDEN) ^ ((purpose << 32) | draw))


def gumbel(key: Tensor, tokens: int | Tensor) -> Tensor:
    """Standard Gumbel noise float32 [..., V] for int64 keys [...], of the first ``tokens`` ids or of given ids [V].

    -log(E) with E = -log(1 - v) and v = (32 bits + 1/2) / 2**32: exact in float32 for small v, which
    gives the largest noise. Values lie in (-3.2, 22.9).
    """
    ids = torch.arange(tokens, device=key.device) if isinstance(tokens, int) else tokens
    bits = _shift(mix(key[..., None] + (ids + 1) * _GOLDEN), 32)
    exponential = torch.log1p(bits.float().add_(0.5).mul_(-(2.0**-32))).neg_()
    return exponential.clamp_(max=22.9).log_().neg_()


def uniform(key: Tensor) -> Tensor:
    """float32 uniforms in [0, 1) with 24 bits, one for each key; never 1, so that probability 1 always accepts."""
    return _shift(mix(key + _GOLDEN), 40).float() * 2.0**-24
