"""Text that stands before a question: a conversation, a document or code, of as many tokens as are asked for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING

from benchsuite.measure.workloads.chronicle import chronicle_text, harbour_talk
from benchsuite.measure.workloads.modules import module_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

THOUSAND = 1024
"""What k means behind a number of tokens, as in the names of context lengths."""

EXACT = 0.01
"""How far the tokens before a question may be from what was asked, as a share; they are never more."""

KINDS_BEFORE: Mapping[str, Callable[[int, int], str]] = MappingProxyType(
    {"conversation": harbour_talk, "document": chronicle_text, "code": module_text}
)
"""By kind: what writes so many words or more by a seed, each of which is a token at least. A conversation is the user's
and the assistant's turns, the user's first, with a blank line between them."""


@dataclass(frozen=True)
class TextBefore:
    """What stands before a question: its ``kind``, of ``KINDS_BEFORE``, its ``tokens``, the ``seed`` of its text."""

    kind: str
    tokens: int
    seed: int

    def turns(self, tokenizer: PreTrainedTokenizerBase, asked: str) -> tuple[str, ...]:
        """Return the conversation that ends with the user's ``asked``, the user's and the assistant's turns in turn.

        Its prompt has ``tokens`` more than that of ``asked`` alone, or up to ``EXACT`` fewer.
        """
        return _turns(self, tokenizer, asked)


def depth_name(workload: str, tokens: int) -> str:
    """Return the name of a workload behind so many tokens; itself at 0.

    Example: ``depth_name("chat", 2048)`` is ``chat@2k``.
    """
    shown = f"{tokens // THOUSAND}k" if tokens % THOUSAND == 0 else str(tokens)
    return f"{workload}@{shown}" if tokens else workload


def split_depth(name: str) -> tuple[str, int]:
    """Return a workload's name without its depth, and the depth in tokens; 0 for a name that has none.

    Example: ``split_depth("chat@2k")`` is ``("chat", 2048)``.
    """
    found = re.fullmatch(r"(.+)@(\d+)(k?)", name)
    return (found[1], int(found[2]) * (THOUSAND if found[3] else 1)) if found else (name, 0)


@lru_cache(maxsize=512)
def _turns(before: TextBefore, tokenizer: PreTrainedTokenizerBase, asked: str) -> tuple[str, ...]:
    from specdec.catalog import chat_ids

    goal = before.tokens + len(chat_ids(tokenizer, asked))
    whole = KINDS_BEFORE[before.kind](before.tokens, before.seed)

    def made(signs: int) -> tuple[str, ...]:
        text = whole[:signs].rstrip()
        if before.kind == "conversation":
            said = text.split("\n\n")
            # An odd number ends with the user, whose last words then stand before the question.
            return (*said, asked) if len(said) % 2 == 0 else (*said[:-1], f"{said[-1]}\n\n{asked}")
        return (f"{text}\n\n{asked}",)

    low, high = 0, len(whole) + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if len(chat_ids(tokenizer, *made(middle))) <= goal else (low, middle)
    return made(low)
