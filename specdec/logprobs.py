"""Log-probabilities of emitted tokens, computed on the device and read with the step's one transfer.

``raw`` is of the softmax of the target's logits, ``processed`` of its distribution after all processors. A greedy row's
processed distribution is that of its logits after bias, penalties and bans, at temperature 1: a one-hot distribution
would say nothing. All are the target's, whoever proposed the token.

Letters: B rows, W slots, V the vocabulary, D the longest accepted path counted with its root, n alternatives.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specdec.messages import Context, Verdict, Window

Ranked = tuple[tuple[int, float], ...]
"""Token ids with their log-probabilities, the likeliest first."""


@dataclass(frozen=True)
class TokenLogprobs:
    """Log-probabilities, in nats, of one emitted token and of the likeliest tokens at its place.

    ``processed`` is -inf for a token that the processors forbid, which only a lossy policy emits.
    """

    raw: float
    processed: float
    top_raw: Ranked
    top_processed: Ranked

    def as_json(self) -> dict[str, object]:
        """The same in JSON's types, alternatives as pairs of token id and log-probability; None in place of -inf."""

        def number(chance: float) -> float | None:
            return chance if math.isfinite(chance) else None

        return {
            "raw": number(self.raw),
            "processed": number(self.processed),
            "top_raw": [[token, number(chance)] for token, chance in self.top_raw],
            "top_processed": [[token, number(chance)] for token, chance in self.top_processed],
        }


def pack(context: Context, logits: Tensor, window: Window, verdict: Verdict, count: int) -> Tensor:
    """int64 [B, D · (2 + 4n)]: for each emitted token what ``unpack`` reads; n is ``count``.

    ``logits`` [B, W, V] are the window's raw logits. Floats are carried by their bits. Called before the rows are
    extended: penalties must not count the tokens whose probability is asked for.
    """
    emitted = verdict.emitted(window)
    slots = verdict.path.clamp(min=0)[:, :, None]
    picked = logits.gather(1, slots.expand(-1, -1, logits.shape[2])).float()
    paths = None
    if context.params.adjustments is not None:
        paths = window.paths.gather(1, slots.expand(-1, -1, window.paths.shape[2]))
    processed = context.ops.process(picked, context.params.ungreedy(), paths)
    parts = []
    for distribution in (picked.log_softmax(dim=-1), processed.log_softmax(dim=-1)):
        top = distribution.topk(min(count, distribution.shape[2]), dim=-1)
        parts += [_bits(distribution.gather(2, emitted[:, :, None])), top.indices, _bits(top.values)]
    return torch.cat(parts, dim=2).flatten(1)


def unpack(packed: npt.NDArray[np.int64], depth: int, wanted: int) -> list[TokenLogprobs]:
    """What one row of ``pack``, int64 [D · (2 + 4n)], says of its D tokens, with ``wanted`` <= n alternatives."""
    each = packed.reshape(depth, 2, -1)
    count = each.shape[2] // 2
    values = each.astype(np.int32).view(np.float32)

    def ranked(token: int, kind: int) -> Ranked:
        ids, chances = each[token, kind, 1 : 1 + wanted], values[token, kind, 1 + count : 1 + count + wanted]
        return tuple(zip(ids.tolist(), chances.tolist(), strict=True))

    return [
        TokenLogprobs(float(values[i, 0, 0]), float(values[i, 1, 0]), ranked(i, 0), ranked(i, 1)) for i in range(depth)
    ]


def _bits(values: Tensor) -> Tensor:
    return values.contiguous().view(torch.int32).long()
