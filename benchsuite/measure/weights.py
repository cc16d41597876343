"""The effect of quantising a target: bytes, and perplexity on the suite's own prompts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from benchsuite.judge.ties import surprise
from benchsuite.measure import workloads


@dataclass(frozen=True)
class Weights:
    """One quantised target, compared with the same weights before rounding.

    ``bytes`` and ``float_bytes``: bytes that a forward reads. Both perplexities are over ``tokens`` predictions.
    """

    target: str
    dtype: str
    bytes: int
    float_bytes: int
    perplexity: float
    float_perplexity: float
    tokens: int


def texts(tokenizer: PreTrainedTokenizerBase) -> list[tuple[int, ...]]:
    """Return the token ids of three prompts of each of the six built-in kinds: the fixed text for perplexity."""
    kinds = [workloads.load_workload(kind).first(3) for kind in workloads.KINDS]
    return [prompt for kind in kinds for prompt in kind.encode(tokenizer)]


@torch.inference_mode()
def perplexity(model: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> float:
    """Return exp of the mean negative log-likelihood of all prompt tokens except each first; one forward per prompt."""
    total, tokens = 0.0, 0
    for prompt in prompts:
        ids = torch.tensor([prompt], device=model.device)
        total += surprise(model(ids[:, :-1], use_cache=False).logits[0].float(), prompt[1:])
        tokens += len(prompt) - 1
    return math.exp(total / tokens)
