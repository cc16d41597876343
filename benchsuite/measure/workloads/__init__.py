"""Workloads: named lists of prompts, in the format of Spec-Bench's question files.

Six kinds are measured by default; a seventh, ``recurring``, asks two questions three times, for drafts that learn from
earlier outputs. All prompts were written for this project (2026, MIT like the rest); no text comes from elsewhere. The
workloads differ in how much of the answer copies the prompt. Each run measures and prints this copy rate, so that a
speedup that comes from repetition is visible as such.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from specdec.errors import SpecdecError, unknown

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

KINDS = ("chat", "question_answering", "summarisation", "code_editing", "rewriting", "reasoning")
"""The six kinds that are measured by default."""

BUILT_IN = (*KINDS, "recurring")


@dataclass(frozen=True)
class Workload:
    """A name and its prompts, each the first turn of one question."""

    name: str
    prompts: tuple[str, ...]

    def encode(self, tokenizer: PreTrainedTokenizerBase) -> list[tuple[int, ...]]:
        """Return the token ids of each prompt, in the tokenizer's chat template or, if it has none, as plain text."""
        from specdec.catalog import chat_ids  # transformers is not needed to list workloads

        return [tuple(chat_ids(tokenizer, prompt)) for prompt in self.prompts]


def load_workload(name: str) -> Workload:
    """Return a built-in kind by name, or read a ``.jsonl`` file of lines {"question_id", "category", "turns"}.

    The prompt is the first turn of a question. Raises SpecdecError for an unknown name, or for a file that cannot be
    read, naming the line.
    """
    if name in BUILT_IN:
        return Workload(name, _read(name, files(__name__).joinpath(f"{name}.jsonl").read_text(encoding="utf-8")))
    path = Path(name)
    if path.suffix != ".jsonl":
        raise unknown("workload", name, BUILT_IN, "A file of your own must end in .jsonl.")
    try:
        return Workload(name, _read(name, path.read_text(encoding="utf-8")))
    except OSError as error:
        raise SpecdecError(f"the workload file {name!r} cannot be read: {error.strerror}") from error


def _read(name: str, text: str) -> tuple[str, ...]:
    prompts = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            turn = json.loads(line)["turns"][0]
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise SpecdecError(
                f"{name}, line {number}: expected a JSON object with question_id, category and a list of turns; "
                f"got {line[:60]!r} ({error})"
            ) from error
        if not isinstance(turn, str) or not turn.strip():
            raise SpecdecError(f"{name}, line {number}: the first turn is empty; give it some text")
        prompts.append(turn)
    if not prompts:
        raise SpecdecError(f"the workload {name!r} has no questions; expected one JSON object a line")
    return tuple(prompts)


def copy_rate(prompt: Sequence[int], output: Sequence[int]) -> float:
    """Return the share of output tokens that repeat the token after the last occurrence of their two predecessors.

    Prompt lookup with bigrams would guess these tokens right; 0 is original text, 1 a copy.

    Example: ``copy_rate([1, 2, 3], [1, 2, 3])`` is 1/3: only the last 3 follows an earlier 1 2.
    """
    text, hits = [*prompt, *output], 0
    last: dict[tuple[int, int], int] = {}
    for index in range(2, len(text)):
        pair = (text[index - 2], text[index - 1])
        hits += index >= len(prompt) and last.get(pair) == text[index]
        last[pair] = text[index]
    return hits / len(output) if output else 0.0
