"""Logit processors, and noise that is a function of its key.

A token is drawn as argmax(logits + Gumbel(key, token id)). The Gumbel's bits are SplitMix64 (Steele, Lea, Flood,
OOPSLA 2014) of a key made from (seed, request, position, purpose, draw), so a draw does not depend on the batch, the
device or earlier draws. An inverse CDF is not used, because a difference of 5e-5 between two float32 forwards moves
every boundary of a CDF, but changes the argmax only near a tie.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

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


@dataclass(frozen=True)
class StackedParams:
    """The sampling parameters of B rows, on the device.

    ``stream`` int64 [B], the noise key of (seed, request); ``temperature`` float32 [B]; ``top_k`` int64 [B];
    ``top_p`` float32 [B]. ``greedy`` (every row at temperature 0) and ``filtered`` (some row has top-k or
    top-p on) are known to the host, so that an unused processor costs nothing and no device is read.
    """

    stream: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    greedy: bool
    filtered: bool


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


def key(stream: Tensor, position: Tensor, purpose: Purpose, draw: int | Tensor = 0) -> Tensor:
    """int64 [B, W] keys of (stream [B], position [B, W], purpose, draw); ``draw``, an int or [B, W], is below 2**32."""
    return mix(mix(stream[:, None] + position * _GOLDEN) ^ ((int(purpose) << 32) | draw))


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


def process(logits: Tensor, params: StackedParams) -> Tensor:
    """Apply each row's processors to raw logits [B, W, V]; returns a new float32 (or float64) tensor.

    Temperature, then top-k, then top-p, each as transformers' warpers of those names define it: top-k
    keeps all tokens that tie with the k-th logit, and top-p applies to the tokens that top-k left. A greedy row keeps
    only its top logit: the limit of temperature to 0, a one-hot distribution.
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if params.greedy:
        return _top_only(logits)
    sampled = params.temperature > 0
    scale = torch.where(sampled, params.temperature, 1.0)[:, None, None]
    warped = logits / scale
    if params.filtered:
        warped = _filter(warped, params.top_k, params.top_p)
    return torch.where(sampled[:, None, None], warped, _top_only(logits))


def _top_only(logits: Tensor) -> Tensor:
    # max(dim) finds the index three times faster than argmax on a CPU.
    top = logits.max(dim=-1, keepdim=True).indices
    return torch.full_like(logits, float("-inf")).scatter_(-1, top, 0.0)


def _filter(logits: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    ordered, order = logits.sort(dim=-1, descending=True)
    vocabulary = logits.shape[-1]
    kth = torch.where(top_k > 0, top_k, vocabulary).clamp(max=vocabulary)[:, None, None] - 1
    floor = ordered.gather(-1, kth.expand(*ordered.shape[:-1], 1))
    ordered = ordered.masked_fill(ordered < floor, float("-inf"))
    distribution = ordered.softmax(dim=-1)
    # A token stays if the mass of the tokens before it is below top_p; the first always stays.
    before = distribution.cumsum(dim=-1) - distribution
    drop = (before >= top_p[:, None, None].to(distribution.dtype)) & (top_p < 1)[:, None, None]
    drop[..., 0] = False
    return torch.full_like(logits, float("-inf")).scatter_(-1, order, ordered.masked_fill(drop, float("-inf")))
