"""Heads that the speculators package saved, what it computed with them, and a draft that is led through those texts.

``benchsuite/tests/recorded/heads/record_blocks.py`` made them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from benchsuite.conformance.models import families, tiny
from specdec import Context, Engine, Request, SamplingParams, Verdict, Window, catalog
from specdec.assembly import Assembly
from specdec.ledger import stacked
from specdec.model import ArenaModel

HEADS = Path(__file__).parent / "recorded" / "heads"

PACES = (0, 3, 2, 3, 1, 3)
"""Proposals kept in each step of a text that is led on: they lead from the first recorded place to all others."""


def recorded_head(name: str) -> str:
    """The folder of a head, as an option of a draft."""
    return str(HEADS / name)


def recorded_steps(name: str) -> dict[str, Tensor]:
    """A head's inputs, ``states`` float32 [T, n, H] and ``tokens`` int64 [T], and what the package computed."""
    steps = load_file(HEADS / f"{name}-steps.safetensors")
    return {**steps, "states": steps["states"].float().unflatten(1, (2, -1))}


def recorded_ids(name: str) -> Tensor:
    """The target's id of each token of a head, int64 [D]."""
    d2t = load_file(HEADS / name / "model.safetensors").get("d2t")
    return torch.arange(258) if d2t is None else d2t + torch.arange(len(d2t))


@cache
def recorded_assembly(rows: int = 2, backend: str = "auto") -> Assembly:
    """An assembly over the tiny target with the embeddings and the head that all recorded heads are for."""
    model, tensors = families.build_model("llama"), load_file(HEADS / "target.safetensors")
    model.get_input_embeddings().weight.data = tensors["embedding"].float()
    model.get_output_embeddings().weight.data = tensors["rows"].float()
    registry = tiny.registry()
    return Assembly(
        registry, ArenaModel(model, registry.backend(backend)), catalog.byte_tokenizer(), max_rows=rows, max_length=64
    )


class Led:
    """Two rows of an engine's draft, led through a recorded text by its states, the second one step behind.

    A rejected slot has states that are none of the text's. ``params`` are those of both requests.
    """

    def __init__(self, engine: Engine, steps: dict[str, Tensor], params: SamplingParams) -> None:
        assert engine.draft is not None
        self.engine, self.draft, self.params = engine, engine.draft, params
        self.states, self.tokens = steps["states"], steps["tokens"]
        self.length = [0, 0]

    def begin(self, row: int, place: int) -> None:
        """Admit a prompt whose last token is at ``place``; it is prefilled in two parts."""
        text = tuple(self.tokens[: place + 1].tolist())
        self.draft.admit(row, Request(row, text, self.params), text)
        for start, end in itertools.pairwise((0, place // 2, place)):
            if end > start:
                self.draft.prefilled(row, self.tokens[None, start:end], start, self.states[None, start:end])
        self.length[row] = place + 1

    def window(self, rows: int, room: int) -> Window:
        """What the draft proposes for the first rows."""
        return self.draft.propose(self.context(rows, room))

    def context(self, rows: int, room: int) -> Context:
        """The context of a step with room for ``room`` proposals."""
        asked = [Request(row, tuple(self.tokens[: self.length[row]].tolist()), self.params) for row in range(rows)]
        length, history = np.array(self.length[:rows]), np.zeros((rows, 64), dtype=np.int64)
        history[:, : len(self.tokens)] = self.tokens.numpy()
        return Context(
            request=torch.arange(rows),
            tokens=torch.tensor(history),
            history=history,
            length=torch.tensor(length),
            length_host=length,
            max_proposals=torch.full((rows,), room),
            max_proposals_host=np.full(rows, room),
            params=stacked(asked, self.engine.target.vocabulary, torch.device("cpu")),
            ops=self.engine.ops,
            coupled=False,
        )

    def keep(self, kept: Sequence[int], width: int, own: bool = True) -> None:
        """Let the target keep so many proposals of each row's window of ``width`` slots, of the recorded text."""
        rows, size = len(kept), self.states.shape[1:]
        slots = torch.arange(width).expand(rows, width)
        count = torch.tensor(kept)
        states = torch.full((rows, width, *size), 7.0)
        tokens = torch.full((rows, width), 5)
        for row, many in enumerate(kept):
            start = self.length[row] - 1
            states[row, : many + 1] = self.states[start : start + many + 1]
            tokens[row, : many + 1] = self.tokens[start : start + many + 1]
            self.length[row] = start + many + 2
        following = torch.stack([self.tokens[length - 1] for length in self.length[:rows]])
        path = torch.where(slots <= count[:, None], slots, -1)
        window = Window.chain(tokens[:, 0], tokens[:, 1:], torch.full((rows,), width - 1))
        self.draft.observe(window, Verdict(path, count, following), states, own)

    def places(self, room: int, first: int = 1) -> Iterator[tuple[int, int, Window]]:
        """(row, place, window) of every step: the place is that of the pending token, in row 0 at first ``first``. Both
        rows go by ``PACES``."""
        self.begin(0, first)
        self.begin(1, first + 1)
        for step, kept in enumerate((*PACES, 0)):
            window = self.window(2, room)
            for row in range(2):
                yield row, self.length[row] - 1, window
            following = PACES[step + 1] if step + 1 < len(PACES) else 0
            self.keep((kept, following), room + 1)
