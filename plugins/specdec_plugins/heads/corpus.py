"""The text that heads learn from: conversations that the target writes by itself.

Given the opening of its chat template, an instruction-tuned model writes a user's question and then answers it
(Magpie, Xu et al., arXiv 2406.08464). No other text is needed, no workload is used, and every token comes with the
hidden state that a head will receive when it drafts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from specdec import SpecdecError, Window
from specdec.catalog import chat_text
from specdec.model import ArenaModel
from specdec.progress import Progress

TEMPERATURES = (0.0, 0.0, 0.0, 0.7, 1.0)
"""One is drawn for each answer, because a head drafts both greedy text, which repeats itself, and sampled text."""

QUESTION_TEMPERATURE = 0.8
"""At temperature 1, a small model's questions become nonsense, and so do the answers to them."""

LONGEST_QUESTION = 64
LONGEST_ANSWER = 96
"""In tokens. Long answers of a small model repeat themselves: they are easy to draft and teach a head little."""

OPENINGS = (
    "What is",
    "What are",
    "What does",
    "What should I",
    "What would happen if",
    "Which",
    "Who",
    "When did",
    "When should",
    "Where can",
    "Why do",
    "Why is",
    "Why does",
    "How do I",
    "How does",
    "How can",
    "How many",
    "How long",
    "How would you",
    "Is it",
    "Are there",
    "Can you",
    "Could you explain",
    "Do you",
    "Does",
    "Should I",
    "Explain",
    "Describe",
    "Tell me",
    "Give me",
    "Write a",
    "Suggest",
    "Recommend",
    "Compare",
    "List",
    "Help me",
    "Name",
    "Summarize",
    "Teach me",
    "Show me",
    "I am",
    "I have",
    "I want to",
    "I need",
    "My",
    "We are",
    "Imagine",
    "Hello",
    "Please",
    "In a few sentences,",
)
"""Half of the questions begin with one of these, because a model alone asks for long tasks too often."""


@dataclass(frozen=True)
class Corpus:
    """Conversations side by side: ``tokens`` int64 [N, T], ``hidden`` bfloat16 [N, T, H], ``answer`` bool [N, T].

    ``hidden[:, t]`` is the input of the target's head after token t: it decides token t + 1. ``answer[:, t]``
    says that token t is part of an answer; heads train on answers and are evaluated on them, as they draft only these.
    """

    tokens: Tensor
    hidden: Tensor
    answer: Tensor

    @staticmethod
    def read(folder: Path) -> Corpus:
        """All finished shards of a folder; SpecdecError if there is none."""
        shards = sorted(folder.glob("shard-*.safetensors"))
        if not shards:
            raise SpecdecError(f"{folder} holds no shards; write some with `python -m specdec_plugins.heads write`")
        read = [load_file(shard) for shard in shards]
        tokens, hidden, answer = (torch.cat([shard[name] for shard in read]) for name in ("tokens", "hidden", "answer"))
        return Corpus(tokens.long(), hidden, answer)

    def rows(self, pick: slice | Tensor) -> Corpus:
        """The conversations that ``pick`` selects."""
        return Corpus(self.tokens[pick], self.hidden[pick], self.answer[pick])

    def split(self, share: float) -> tuple[Corpus, Corpus]:
        """(training part, held-out part): the last ``share`` of the conversations is held out."""
        cut = len(self.tokens) - max(1, round(len(self.tokens) * share))
        return self.rows(slice(cut)), self.rows(slice(cut, None))


class _Script:
    """The current speaker of each conversation, and the template's tokens that must come next."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, rows: int, generator: torch.Generator) -> None:
        marks = ("<<question>>", "<<answer>>", "<<again>>")
        turns = [
            {"role": role, "content": mark} for role, mark in zip(("user", "assistant", "user"), marks, strict=True)
        ]
        text = chat_text(tokenizer, turns, answer=False)
        opening, *between = re.split("|".join(marks), text)[:3]
        self.opening, self.to_answer, self.to_question = (
            tokenizer.encode(part, add_special_tokens=False) for part in (opening, *between)
        )
        self.openings = [tokenizer.encode(words, add_special_tokens=False) for words in OPENINGS]
        self.end = self.to_answer[0]
        self._generator = generator
        self.forced = [self.opening + self._words() for _ in range(rows)]
        self.asking = [False] * rows  # changes after the last forced token
        self.spoken = [0] * rows
        self.answering = [False] * rows  # whether the last token is part of an answer, end token included
        self.temperature = torch.ones(rows)

    def follow(self, drawn: list[int]) -> list[int]:
        """The next tokens: the drawn ones, except where the template or the length limit forces another."""
        out = []
        for row, token in enumerate(drawn):
            forced = self.forced[row]
            self.answering[row] = not forced and not self.asking[row]
            if forced:
                token = forced.pop(0)
                if not forced:
                    self._turn(row)
            else:
                self.spoken[row] += 1
                if self.spoken[row] > (LONGEST_QUESTION if self.asking[row] else LONGEST_ANSWER):
                    token = self.end
                if token == self.end:
                    forced += self.to_answer[1:] if self.asking[row] else self.to_question[1:] + self._words()
            out.append(token)
        return out

    def _words(self) -> list[int]:
        pick = int(torch.randint(2 * len(self.openings), (), generator=self._generator))
        return self.openings[pick] if pick < len(self.openings) else []

    def _turn(self, row: int) -> None:
        self.asking[row] = not self.asking[row]
        self.spoken[row] = 0
        pick = int(torch.randint(len(TEMPERATURES), (), generator=self._generator))
        self.temperature[row] = QUESTION_TEMPERATURE if self.asking[row] else TEMPERATURES[pick]


def write_corpus(
    folder: Path, target: ArenaModel, tokenizer: PreTrainedTokenizerBase, shards: int, rows: int, length: int
) -> None:
    """Write shards of ``rows`` conversations of ``length`` tokens; existing shards are kept, so it can be resumed.

    The number of a shard is its seed. ``target`` should be in bfloat16, and ``rows`` so large that the products take
    longer than reading the weights.
    """
    folder.mkdir(parents=True, exist_ok=True)
    missing = [n for n in range(shards) if not _path(folder, n).exists()]
    with Progress(len(missing) * length * rows, "tokens", "writing") as progress:
        for number in missing:
            shard = _shard(target, tokenizer, number, rows, length, progress)
            partial = _path(folder, number).with_suffix(".partial")
            save_file(shard, partial)
            partial.rename(_path(folder, number))


def _path(folder: Path, number: int) -> Path:
    return folder / f"shard-{number:04}.safetensors"


@torch.inference_mode()
def _shard(
    target: ArenaModel, tokenizer: PreTrainedTokenizerBase, seed: int, rows: int, length: int, progress: Progress
) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    script = _Script(tokenizer, rows, generator)
    arena = target.arena(rows, length, 1)
    none = torch.zeros(rows, dtype=torch.int64, device=target.device)
    tokens, hidden, answer = [], [], []
    drawn = [0] * rows
    for position in range(length):
        token = torch.tensor(script.follow(drawn), device=target.device)
        window = Window.chain(token, token[:, None][:, :0], none)
        logits, state = target.forward(arena, window, slice(0, rows), position)
        arena.committed += 1
        drawn = _draw(logits[:, 0].float().cpu(), script.temperature, generator).tolist()
        tokens.append(token.int().cpu())
        answer.append(torch.tensor(script.answering))
        hidden.append(state[:, 0].to("cpu", torch.bfloat16))
        progress.step(count=rows)
    columns = {"tokens": tokens, "hidden": hidden, "answer": answer}
    return {name: torch.stack(column, dim=1) for name, column in columns.items()}


def _draw(logits: Tensor, temperature: Tensor, generator: torch.Generator) -> Tensor:
    """Draw one token a row by inverse CDF; here it does not matter which of two near ties is drawn."""
    scale = temperature.clamp(min=1e-6)[:, None]
    top = logits.max(dim=1, keepdim=True)
    mass = ((logits - top.values) / scale).exp_().cumsum(dim=1)
    point = torch.rand(len(logits), 1, generator=generator) * mass[:, -1:]
    sampled = torch.searchsorted(mass, point).clamp(max=logits.shape[1] - 1)
    return torch.where(temperature[:, None] > 0, sampled, top.indices)[:, 0]
