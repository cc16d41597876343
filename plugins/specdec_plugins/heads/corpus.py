"""The text that heads learn from: conversations that the target writes by itself.

Given the opening of its chat template, an instruction-tuned model writes a user's question, and then
answers it (Magpie, Xu et al., arXiv 2406.08464). No text from elsewhere is needed, no workload is seen,
and every token comes with the hidden state that a head will be given when it drafts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from specdec import SpecdecError, Window
from specdec.model import ArenaModel

TEMPERATURES = (0.0, 0.0, 0.6, 1.0)
"""One is drawn for each answer: greedy text repeats itself and sampled text wanders, and a head meets both."""

LONGEST_QUESTION = 64


@dataclass(frozen=True)
class Corpus:
    """Conversations side by side: ``tokens`` int64 [N, T] and ``hidden`` bfloat16 [N, T, H].

    ``hidden[:, t]`` is what the target's head is given after token t: it decides token t + 1.
    """

    tokens: Tensor
    hidden: Tensor

    @staticmethod
    def read(folder: Path) -> Corpus:
        """Every finished shard of a folder; SpecdecError without one."""
        shards = sorted(folder.glob("shard-*.safetensors"))
        if not shards:
            raise SpecdecError(f"{folder} holds no shards; write some with `python -m specdec_plugins.heads write`")
        tokens, hidden = [], []
        for shard in shards:
            with safe_open(shard, framework="pt") as file:
                tokens.append(file.get_tensor("tokens").long())
                hidden.append(file.get_tensor("hidden"))
        return Corpus(torch.cat(tokens), torch.cat(hidden))

    def split(self, share: float) -> tuple[Corpus, Corpus]:
        """(training, held out): the last ``share`` of the conversations is held out."""
        cut = len(self.tokens) - max(1, round(len(self.tokens) * share))
        return Corpus(self.tokens[:cut], self.hidden[:cut]), Corpus(self.tokens[cut:], self.hidden[cut:])


class _Script:
    """Whose turn it is in each conversation, and the tokens of the template that must come next."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, rows: int, generator: torch.Generator) -> None:
        marks = ("<<question>>", "<<answer>>", "<<again>>")
        turns = [
            {"role": role, "content": mark} for role, mark in zip(("user", "assistant", "user"), marks, strict=True)
        ]
        text = str(tokenizer.apply_chat_template(turns, tokenize=False))
        opening, *between = re.split("|".join(marks), text)[:3]
        self.opening, self.to_answer, self.to_question = (
            tokenizer.encode(part, add_special_tokens=False) for part in (opening, *between)
        )
        self.end = self.to_answer[0]
        self.forced = [list(self.opening) for _ in range(rows)]
        self.asking = [False] * rows  # turns at the end of what is forced
        self.spoken = [0] * rows
        self.temperature = torch.ones(rows)
        self._generator = generator

    def follow(self, drawn: list[int]) -> list[int]:
        """The tokens that really come next, given those drawn."""
        out = []
        for row, token in enumerate(drawn):
            forced = self.forced[row]
            if forced:
                token = forced.pop(0)
                if not forced:
                    self._turn(row)
            else:
                self.spoken[row] += 1
                if self.asking[row] and self.spoken[row] > LONGEST_QUESTION:
                    token = self.end
                if token == self.end:
                    forced += (self.to_answer if self.asking[row] else self.to_question)[1:]
            out.append(token)
        return out

    def _turn(self, row: int) -> None:
        self.asking[row] = not self.asking[row]
        self.spoken[row] = 0
        pick = int(torch.randint(len(TEMPERATURES), (), generator=self._generator))
        self.temperature[row] = 1.0 if self.asking[row] else TEMPERATURES[pick]


def write(
    folder: Path, target: ArenaModel, tokenizer: PreTrainedTokenizerBase, shards: int, rows: int, length: int
) -> None:
    """Write shards of ``rows`` conversations of ``length`` tokens; those that exist are kept, so it can be resumed.

    A shard is drawn with its own number as the seed. ``target`` is best in bfloat16 and with as many rows as
    make its products worth their weights' reading.
    """
    folder.mkdir(parents=True, exist_ok=True)
    missing = [n for n in range(shards) if not _path(folder, n).exists()]
    with tqdm(total=len(missing) * length, unit_scale=rows, unit="tok", desc="writing") as bar:
        for number in missing:
            shard = _shard(target, tokenizer, number, rows, length, bar)
            partial = _path(folder, number).with_suffix(".partial")
            save_file(shard, partial)
            partial.rename(_path(folder, number))


def _path(folder: Path, number: int) -> Path:
    return folder / f"shard-{number:04}.safetensors"


@torch.inference_mode()
def _shard(
    target: ArenaModel, tokenizer: PreTrainedTokenizerBase, seed: int, rows: int, length: int, bar: tqdm[Any]
) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    script = _Script(tokenizer, rows, generator)
    arena = target.arena(rows, length, 1)
    none = torch.zeros(rows, dtype=torch.int64, device=target.device)
    tokens, hidden = [], []
    drawn = [0] * rows
    for position in range(length):
        token = torch.tensor(script.follow(drawn), device=target.device)
        window = Window.chain(token, token[:, None][:, :0], none)
        logits, state = target.forward(arena, window, slice(0, rows), position)
        arena.committed += 1
        drawn = _draw(logits[:, 0].float().cpu(), script.temperature, generator).tolist()
        tokens.append(token.int().cpu())
        hidden.append(state[:, 0].to("cpu", torch.bfloat16))
        bar.update()
    return {"tokens": torch.stack(tokens, dim=1), "hidden": torch.stack(hidden, dim=1)}


def _draw(logits: Tensor, temperature: Tensor, generator: torch.Generator) -> Tensor:
    """One token a row, by inverse CDF: here nothing depends on which of two near ties is drawn."""
    scale = temperature.clamp(min=1e-6)[:, None]
    top = logits.max(dim=1, keepdim=True)
    mass = ((logits - top.values) / scale).exp_().cumsum(dim=1)
    point = torch.rand(len(logits), 1, generator=generator) * mass[:, -1:]
    sampled = torch.searchsorted(mass, point).clamp(max=logits.shape[1] - 1)
    return torch.where(temperature[:, None] > 0, sampled, top.indices)[:, 0]
