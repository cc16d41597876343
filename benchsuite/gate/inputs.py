"""Digests of what a run reads: prompts, tokenizer, weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedTokenizerBase

    from benchsuite.measure.workloads import Question

SAMPLED = 4096
"""Numbers of each tensor whose bits are digested, besides the sum of all: a digest takes one read of the weights."""


def prompts_digest(questions: Sequence[Question]) -> str:
    """16 hexadecimal digits of the texts of all turns and of what says the text before them, in order."""
    found = [[*question.turns, *([asdict(question.before)] if question.before else [])] for question in questions]
    return _hexadecimal(json.dumps(found).encode())


def rendered_digest(prompts: Sequence[Sequence[int]]) -> str:
    """16 hexadecimal digits of the token ids of prompts as the chat template has rendered them, in order.

    A template may print the date: the same texts and the same tokenizer are other prompts on another day.
    """
    return _hexadecimal(json.dumps([[*ids] for ids in prompts]).encode())


def tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """16 hexadecimal digits of the vocabulary, the merges, the special tokens and the chat template.

    A tokenizer without a file of its own (``backend_tokenizer``) is told by its vocabulary.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    text = backend.to_str() if backend is not None else json.dumps(tokenizer.get_vocab(), sort_keys=True)
    special = json.dumps(tokenizer.special_tokens_map, sort_keys=True, default=str)
    return _hexadecimal(f"{text}\n{special}\n{tokenizer.chat_template}".encode())


def weights_digest(model: nn.Module) -> str:
    """16 hexadecimal digits of the parameters: names, shapes, dtypes, the sum of all bits, and some numbers' bits."""
    found = hashlib.sha256()
    for name, parameter in model.named_parameters():
        bits = _bits(parameter.detach())
        found.update(f"{name} {tuple(parameter.shape)} {parameter.dtype} {int(bits.sum())} ".encode())
        found.update(bits[:: max(1, bits.numel() // SAMPLED)].cpu().numpy().tobytes())
    return found.hexdigest()[:16]


def _bits(values: Tensor) -> Tensor:
    """The numbers of a tensor as integers of the same size, flat; their sum does not depend on an order."""
    import torch

    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return values.contiguous().view(integers[values.element_size()]).flatten()


def _hexadecimal(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
