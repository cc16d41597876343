"""The text that heads learn from: conversations that the target writes by itself.

Given the opening of its chat template, an instruction-tuned model writes a user's question and then answers it
(Magpie, Xu et al., arXiv 2406.08464). No other text is needed, no workload is used, and every token comes with the
hidden state that a head will receive when it drafts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from specdec import SpecdecError, Window
from specdec.model import ArenaModel
from specdec.progress import Progress
from specdec.taps import Taps
from specdec_plugins.heads.script import TurnScript


@dataclass(frozen=True)
class Corpus:
    """Conversations side by side: ``tokens`` int64 [N, T], ``hidden`` bfloat16 [N, T, H], ``answer`` bool [N, T].

    ``hidden[:, t]`` is the input of the target's head after token t: it decides token t + 1. ``answer[:, t]``
    says that token t is part of an answer; heads train on answers and are evaluated on them, as they draft only these.
    A text with ``layers`` has ``hidden`` [N, T, n + 1, H]: the outputs of these n layers, then that input of the head.
    """

    tokens: Tensor
    hidden: Tensor
    answer: Tensor
    layers: tuple[int, ...] = ()

    @staticmethod
    def read(folder: Path) -> Corpus:
        """All finished shards of a folder; SpecdecError if there is none."""
        shards = sorted(folder.glob("shard-*.safetensors"))
        if not shards:
            raise SpecdecError(f"{folder} holds no shards; write some with `python -m specdec_plugins.heads write`")
        read = [load_file(shard) for shard in shards]
        tokens, hidden, answer = (torch.cat([shard[name] for shard in read]) for name in ("tokens", "hidden", "answer"))
        return Corpus(tokens.long(), hidden, answer, _layers_of(shards))

    def rows(self, pick: slice | Tensor) -> Corpus:
        """The conversations that ``pick`` selects."""
        return Corpus(self.tokens[pick], self.hidden[pick], self.answer[pick], self.layers)

    def split(self, share: float) -> tuple[Corpus, Corpus]:
        """(training part, held-out part): the last ``share`` of the conversations is held out."""
        cut = len(self.tokens) - max(1, round(len(self.tokens) * share))
        return self.rows(slice(cut)), self.rows(slice(cut, None))


def write_corpus(
    folder: Path,
    target: ArenaModel,
    tokenizer: PreTrainedTokenizerBase,
    shards: int,
    rows: int,
    length: int,
    layers: tuple[int, ...] = (),
    first: int = 0,
) -> None:
    """Write shards of ``rows`` conversations of ``length`` tokens; existing shards are kept, so it can be resumed.

    The number of a shard, from ``first`` on, is its seed. ``rows`` should be so many that the products take longer than
    reading the weights.
    """
    folder.mkdir(parents=True, exist_ok=True)
    missing = [n for n in range(first, first + shards) if not _path(folder, n).exists()]
    with Progress(len(missing) * length * rows, "tokens", "writing") as progress:
        for number in missing:
            shard = _shard(target, tokenizer, number, rows, length, layers, progress)
            partial = _path(folder, number).with_suffix(".partial")
            save_file(shard, partial, metadata={"layers": "-".join(map(str, layers))})
            partial.rename(_path(folder, number))


def layers_named(text: str) -> tuple[int, ...]:
    """The indices of layers in ``2-15-28``; none of an empty text. SpecdecError for anything else."""
    parts = text.split("-") if text else []
    if not all(part.isdecimal() for part in parts):
        raise SpecdecError(f"layers are {text!r}; expected indices of decoder layers, ascending from 0, as 2-15-28")
    return tuple(map(int, parts))


def _layers_of(shards: list[Path]) -> tuple[int, ...]:
    """The layers with whose outputs all of these shards were written."""
    found: dict[str, Path] = {}
    for shard in shards:
        with safe_open(shard, framework="pt") as file:
            found.setdefault((file.metadata() or {}).get("layers", ""), shard)
    if len(found) > 1:
        said = ", ".join(f"{shard.name} {layers or 'no layers'}" for layers, shard in found.items())
        raise SpecdecError(f"shards of one text have the outputs of different layers: {said}; write each text apart")
    return layers_named(next(iter(found)))


def _path(folder: Path, number: int) -> Path:
    return folder / f"shard-{number:04}.safetensors"


@torch.inference_mode()
def _shard(
    target: ArenaModel,
    tokenizer: PreTrainedTokenizerBase,
    seed: int,
    rows: int,
    length: int,
    layers: tuple[int, ...],
    progress: Progress,
) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    script = TurnScript(tokenizer, rows, generator)
    arena = target.arena(rows, length, 1)
    none = torch.zeros(rows, dtype=torch.int64, device=target.device)
    tokens, hidden, answer = [], [], []
    taps = Taps(layers, final=True)
    drawn = [0] * rows
    for position in range(length):
        token = torch.tensor(script.follow(drawn), device=target.device)
        window = Window.chain(token, token[:, None][:, :0], none)
        logits, state = target.forward(arena, window, slice(0, rows), position, taps)
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
