"""Judgements: how likely another model finds the outputs of the arms, and any model a fixed text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerBase

from benchsuite.judge.ties import surprise
from specdec import catalog
from specdec.characters import decoded
from specdec.errors import SpecdecError

Output = tuple[tuple[int, ...], tuple[int, ...]]
"""A prompt and what followed it, as token ids."""


@dataclass(frozen=True)
class Judgement:
    """The sum of -log p over ``tokens`` tokens of the judge's tokenizer, in nats; two can be added."""

    nats: float
    tokens: int

    def __add__(self, other: Judgement) -> Judgement:
        return Judgement(self.nats + other.nats, self.tokens + other.tokens)

    @property
    def perplexity(self) -> float | None:
        """exp of the mean; None without a token."""
        return math.exp(self.nats / self.tokens) if self.tokens else None


class OutputJudge:
    """A model that reads outputs which others made. Raises SpecdecError if it cannot be loaded.

    Where the outputs' tokenizer has the judge's vocabulary, their token ids are read; else their text is tokenized
    again, without special tokens. Perplexities of two judges cannot be compared, nor those of outputs that end early
    with those that do not: a lossy policy is compared with plain decoding under the same judge.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        self.name = name
        self._loaded = catalog.load(name, device, torch.float32, rows=1, max_length=1024)

    def judge(self, outputs: Iterable[Output], tokenizer: PreTrainedTokenizerBase) -> Judgement:
        """Return the judgement of outputs made with ``tokenizer``; equal ones count once. SpecdecError if one is too
        long for the judge."""
        read = [tuple(self._read(ids, tokenizer) for ids in pair) for pair in dict.fromkeys(outputs)]
        return sum((self.surprise(*pair) for pair in read), Judgement(0.0, 0))

    def require_room(self, prompt: Sequence[int], tokenizer: PreTrainedTokenizerBase, more: int) -> None:
        """Raise SpecdecError if the judge cannot read a prompt with ``more`` tokens after it."""
        most = getattr(self._loaded.model.config, "max_position_embeddings", None)
        length = len(self._read(prompt, tokenizer)) + more
        if most is not None and length > most:
            raise SpecdecError(
                f"--specdec-judge {self.name} reads at most {most} tokens, and a prompt with its output has {length}; "
                "use another judge, or shorter prompts"
            )

    def _read(self, ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> list[int]:
        """Token ids of ``tokenizer`` as the judge's own."""
        own = self._loaded.tokenizer
        if tokenizer.get_vocab() == own.get_vocab():
            return [*ids]
        text = decoded(tokenizer, ids, special=False)
        return list(own.encode(text, add_special_tokens=False))

    @torch.inference_mode()
    def surprise(self, prompt: Sequence[int], output: Sequence[int]) -> Judgement:
        """Return the judgement of ``output`` after ``prompt``, both of the judge's own token ids."""
        if not prompt or not output:
            return Judgement(0.0, 0)
        self.require_room(prompt, self._loaded.tokenizer, len(output))
        ids = torch.tensor([[*prompt, *output]], device=self._loaded.model.device)
        logits = self._loaded.model(ids[:, :-1], use_cache=False, logits_to_keep=len(output)).logits[0]
        return Judgement(surprise(logits.float(), output), len(output))


def together(judgements: Iterable[Judgement | None]) -> Judgement | None:
    """Return the sum; None if there is none, or if one is missing."""
    found = list(judgements)
    known = [one for one in found if one is not None]
    return sum(known[1:], known[0]) if known and len(known) == len(found) else None
