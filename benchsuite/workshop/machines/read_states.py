"""What a draft is given of the target, hidden states and logits, beside what the unmodified model computes."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from benchsuite.conformance.models import families, tiny
from specdec import Context, Draft, Engine, Env, Request, Verdict, Window, catalog
from specdec.assembly import Assembly
from specdec.model import ArenaModel
from specdec.taps import Taps
from specdec_plugins.drafts.oracle import Oracle

Part = tuple[Tensor, Tensor]
"""States [N, n, H] of some tokens of a text, and logits [N, V] after the same tokens."""


class StateReader(Draft):
    """Proposes as another draft does, and keeps the states and logits of every token that stays in a row's text.

    ``texts`` has them by the text of each ended request. ``lent`` has of every step the rows' texts before it, its
    window, and all states, those of rejected slots too.
    """

    needs_logits = True

    def __init__(self, env: Env, inner: str, taps: Taps) -> None:
        self._inner = env.draft(inner)
        self.hidden_layers, self.needs_hidden, self.branches = taps.layers, taps.final, self._inner.branches
        self.texts: dict[tuple[int, ...], Part] = {}
        self.lent: list[tuple[list[tuple[int, ...]], Window, Tensor]] = []
        self._states: dict[int, list[Tensor]] = {}
        self._logits: dict[int, list[Tensor]] = {}
        self._read: dict[int, list[int]] = {}

    def admit(self, row: int, request: Request, prompt: tuple[int, ...]) -> None:
        """Begin a text without states; the other draft admits it."""
        self._begin(row, request, prompt, [], 0)

    def resume(self, row: int, request: Request, prompt: tuple[int, ...], kept: Any, first: int) -> None:
        """Begin with the kept states of the common tokens; the other draft admits the request."""
        self._begin(row, request, prompt, [kept[:first]], first)

    def _begin(self, row: int, request: Request, prompt: tuple[int, ...], states: list[Tensor], first: int) -> None:
        assert row not in self._states
        self._states[row], self._logits[row], self._read[row] = states, [], [*prompt[:first]]
        self._inner.admit(row, request, prompt)

    def keep(self, row: int, tokens: tuple[int, ...]) -> object:
        """All states of the text so far."""
        return torch.cat(self._states[row])

    def move(self, source: int, row: int, request: Request, tokens: tuple[int, ...]) -> None:
        """Move what is known of the request."""
        self._states[row], self._logits[row] = self._states.pop(source), self._logits.pop(source)
        self._read[row] = self._read.pop(source)
        self._inner.move(source, row, request, tokens)

    def release(self, row: int, tokens: tuple[int, ...]) -> None:
        """Put the text's states and logits into ``texts``. AssertionError if they are of other tokens."""
        states, logits = torch.cat(self._states.pop(row)), self._logits.pop(row)
        assert tuple(self._read.pop(row)[: len(tokens) - 1]) == tokens[:-1], "states of other tokens than the text's"
        # A stop may lie within what was accepted; the states of a prompt come without logits.
        spared = len(states) - (len(tokens) - 1)
        after = torch.cat(logits) if logits else states.new_zeros(0, 1)
        self.texts[tokens] = states[: len(tokens) - 1], after[: len(after) - spared]
        self._inner.release(row, tokens)

    def prefilled(self, row: int, tokens: Tensor, start: int, hidden: Tensor) -> None:
        """Append a chunk's states; AssertionError unless it begins where the last one ended."""
        assert start == len(self._read[row])
        self._states[row].append(hidden[0].clone())
        self._read[row] += tokens[0].tolist()

    def propose(self, context: Context) -> Window:
        """What the other draft proposes."""
        return self._inner.propose(context)

    def observe(self, window: Window, verdict: Verdict, hidden: Tensor | None, own: bool) -> None:
        """Append states and logits of the accepted path; the last are those of ``Verdict.last``."""
        assert hidden is not None
        assert verdict.logits is not None
        self.lent.append(([tuple(self._read[row]) for row in range(len(hidden))], window, hidden.clone()))
        last = verdict.last(hidden), verdict.last(verdict.logits)
        for row, count in enumerate(verdict.num_accepted.tolist()):
            before = verdict.path[row, :count]
            for kept, given, newest in zip((self._states, self._logits), (hidden, verdict.logits), last, strict=True):
                kept[row] += [given[row, before].clone(), newest[row : row + 1].clone()]
            self._read[row] += window.tokens[row, verdict.path[row, : count + 1]].tolist()
        self._inner.observe(window, verdict, None, own)


def over_reader(
    family: str, backend: str, inner: str, taps: Taps, dtype: torch.dtype = torch.float32, layers: int = 5
) -> Assembly:
    """Two rows over so many layers of a family; its draft ``reader`` proposes as ``inner`` (``forked`` is one
    with trees) and reads ``taps``."""
    registry = tiny.registry(
        ("draft", "reader", lambda env: StateReader(env, inner, taps)), ("draft", "forked", lambda env: Forked(env))
    )
    target = ArenaModel(families.build_model(family, 0, dtype, layers), registry.backend(backend))
    return Assembly(registry, target, catalog.byte_tokenizer(), max_rows=2, max_length=160)


def reader_of(engine: Engine) -> StateReader:
    """The reader of an engine of ``over_reader``."""
    assert isinstance(engine.draft, StateReader)
    return engine.draft


class Forked(Oracle):
    """An oracle that puts a wrong token beside each right one, before it: a path's slots are not the first ones."""

    branches = True

    def __init__(self, env: Env) -> None:
        super().__init__(env, rate=0.8)

    def propose(self, context: Context) -> Window:
        """A tree of twice as many nodes as it is deep."""
        chain = super().propose(replace(context, max_proposals_host=context.max_proposals_host // 2))
        rows = [row[1:width] for row, width in zip(chain.tokens.tolist(), chain.width.tolist(), strict=True)]
        pairs = [[one for token in row for one in ((token + 1) % 256, token)] for row in rows]
        return Window.ragged(context, pairs, [[slot // 2 * 2 for slot in range(len(row))] for row in pairs])


@dataclass
class Unmodified:
    """The model that a target runs, as transformers runs it, in the target's dtype and in float64."""

    own: nn.Module
    exact: nn.Module

    @staticmethod
    def of(target: ArenaModel) -> Unmodified:
        """The twin of a target, and a copy of it in float64."""
        return Unmodified(target.twin(), deepcopy(target.twin()).double())

    @torch.inference_mode()
    def check(self, text: tuple[int, ...], taps: Taps, got: Part, where: str) -> None:
        """Raise AssertionError unless states of the tokens of ``text``, and logits after its last ones, are the
        model's: they err at most four times as much as its own do in all the text, plus one rounding step of the
        largest.

        Twice is too little: a sound text of 37 tokens erred 2.3 times as much.
        """
        for name, given, own, exact in zip(
            ("states", "logits"), got, _read(self.own, text, taps), _read(self.exact, text, taps), strict=True
        ):
            step = torch.finfo(own.dtype).eps * float(exact.abs().max())
            allowed = 4 * (float((own - exact).abs().max()) + step)
            exact = exact[len(exact) - len(given) :]
            assert given.shape == exact.shape, f"{name} {tuple(given.shape)}, not {tuple(exact.shape)}: {where}"
            if len(given):
                far = float((given.double() - exact).abs().max())
                assert far <= allowed, f"{name} err by {far:.1e}, the model's own by {allowed / 4:.1e}: {where}"


def _read(model: Any, text: tuple[int, ...], taps: Taps) -> Part:
    """States and logits of all tokens of a text by ``output_hidden_states``, whose last entry is the final norm's."""
    out = model(torch.tensor([text]), output_hidden_states=True, use_cache=False)
    *outputs, final = (states[0] for states in out.hidden_states[1:])
    asked = [outputs[layer] for layer in taps.layers]
    return torch.stack([*asked, *[final] * taps.final], dim=1) if asked else final, out.logits[0]
