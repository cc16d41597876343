"""What rounding a target's weights saves and costs: bytes, and perplexity on the suite's own prompts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from benchsuite.measure import workloads


@dataclass(frozen=True)
class Weights:
    """One quantised target beside the same weights before they were rounded.

    ``bytes`` and ``float_bytes`` as a forward reads them; the perplexities are of ``tokens`` predictions.
    """

    target: str
    dtype: str
    bytes: int
    float_bytes: int
    perplexity: float
    float_perplexity: float
    tokens: int


def texts(tokenizer: PreTrainedTokenizerBase) -> list[tuple[int, ...]]:
    """The fixed text that perplexity is taken of: the prompts of the six built-in workloads."""
    return [prompt for kind in workloads.KINDS for prompt in workloads.load_workload(kind).encode(tokenizer)]


@torch.inference_mode()
def perplexity(model: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> float:
    """exp of the mean negative log-likelihood of every token of every prompt but its first, in one forward each."""
    total, tokens = 0.0, 0
    for prompt in prompts:
        ids = torch.tensor([prompt], device=model.device)
        distribution = model(ids[:, :-1], use_cache=False).logits[0].float().log_softmax(dim=-1)
        total -= float(distribution.gather(1, ids[0, 1:, None]).double().sum())
        tokens += len(prompt) - 1
    return math.exp(total / tokens)
