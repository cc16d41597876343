"""Near ties on purpose: windows in which a token almost as likely as the target's own is proposed in its place.

Where proposals are either the target's own tokens or far from them, a policy that keeps what is likely enough is wrong
nowhere. Nor may it matter where a near tie lies, or what stands beside it: a window is offered under each condition.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from specdec import Context, Purpose, Request, SamplingParams, Window, sampling
from specdec.rows import Live, Rows
from specdec.stops import StopWatcher
from specdec_kernels.reference import Reference

GAPS = (1e-4, 1e-3, 0.01, 0.1, 0.3, 0.6, 1.0, 2.0)
"""Nats from the target's own token to the next, where a policy is offered that one."""

WIDEST = 8
"""Slots of the widest window whose every depth is offered at every gap."""

HEATS = (0.5, 1.0, 1.75)
"""Temperatures of rows that are sampled."""

Sibling = Literal["none", "younger", "elder"]
"""Which sibling of a near tie is the target's own token, if any is."""


@dataclass(frozen=True)
class Condition:
    """What stands beside near ties: at each depth of windows of ``width`` slots, at each of ``gaps``.

    ``alone``: one row at a time. ``text``: tokens of each row's text. ``params``: other parameters of each request.
    ``beside``: half of the rows have this temperature, and are not looked at. ``drawn``: the proposals have q.
    ``padding``: slots beyond a row's own.
    """

    width: int = 4
    gaps: tuple[float, ...] = (1e-4, 0.05, 0.5)
    vocabulary: int = 258
    alone: bool = False
    text: int = 4
    params: Mapping[str, Any] = field(default_factory=dict)
    beside: float | None = None
    drawn: bool = False
    padding: int = 0


CONDITIONS: dict[str, Condition] = {
    "alone in its batch": Condition(alone=True),
    "in a large vocabulary": Condition(width=3, vocabulary=40_000, gaps=(1e-4, 0.1)),
    "in a wide window": Condition(width=33, vocabulary=32),
    "after a long text": Condition(text=3000),
    "under penalties": Condition(params={"repetition_penalty": 1.25, "frequency_penalty": 0.5}),
    "under a bias": Condition(params={"logit_bias": {7: 0.5}}),
    "under filters": Condition(params={"top_k": 100, "top_p": 0.99}),
    "beside rows at temperature 0": Condition(beside=0.0),
    "beside rows at temperature 0.8": Condition(beside=0.8),
    "drawn from q": Condition(drawn=True),
    "before padding": Condition(padding=2),
}


@dataclass(frozen=True)
class Offer:
    """A step of some rows: their window, the target's logits float32 [B, W, V], and what the engine says of them.

    ``gaps`` has each row's nats between the target's own token and the token proposed for it, ``seen`` whether the row
    is looked at.
    """

    condition: str
    window: Window
    logits: Tensor
    context: Context
    gaps: tuple[float, ...]
    seen: tuple[bool, ...]

    def choices(self) -> Tensor:
        """int64 [B, W]: the token that plain decoding emits after each slot."""
        processed = self.context.process(self.logits, self.window)
        return self.context.choose(processed, self.context.length[:, None] + self.window.depth, Purpose.TARGET)


def offers(trees: bool, heats: Sequence[float]) -> Iterator[Offer]:
    """Near ties at temperatures ``heats``, in turn: of each depth, gap and width, and then under each condition.

    ``trees``: also as a sibling of the target's own token.
    """
    siblings: tuple[Sibling, ...] = ("none", "younger", "elder") if trees else ("none",)
    for width, sibling in itertools.product(range(2, WIDEST + 1), siblings):
        yield from offered("", Condition(width=width, gaps=GAPS, vocabulary=32), heats, sibling)
    for name, condition in CONDITIONS.items():
        if condition.beside not in heats:
            for sibling in siblings[: 1 if condition.drawn else 2]:
                yield from offered(name, condition, heats, sibling)


def offered(name: str, condition: Condition, heats: Sequence[float], sibling: Sibling = "none") -> Iterator[Offer]:
    """Near ties under one condition: one offer, or one for each row if they are alone."""
    cases = [*itertools.product(range(1, condition.width), condition.gaps)]
    work = [_request(number, condition, heats) for number in range(len(cases))]
    step = 1 if condition.alone else len(cases)
    for first in range(0, len(cases), step):
        yield _offer(name, condition, work[first : first + step], cases[first : first + step], sibling)


def _request(number: int, condition: Condition, heats: Sequence[float]) -> Request:
    other = condition.beside is not None and number % 2 == 1
    heat = condition.beside if other else heats[number % len(heats)]
    text = [(number + place) * 31 % condition.vocabulary for place in range(condition.text)]
    return Request(number, tuple(text), SamplingParams(temperature=heat or 0.0, seed=5, **condition.params))


def _offer(
    name: str, condition: Condition, work: Sequence[Request], cases: Sequence[tuple[int, float]], sibling: Sibling
) -> Offer:
    generator = torch.Generator().manual_seed(condition.width)
    width, extra = condition.width, int(sibling != "none")
    size, rows = width + extra + condition.padding, len(cases)
    logits = torch.randn(rows, size, condition.vocabulary, generator=generator)
    parents = torch.arange(-1, size - 1).expand(rows, -1).clone()
    depth, gap = (torch.tensor(part)[:, None] for part in zip(*cases, strict=True))
    if extra:
        parents[:, width : width + 1] = depth - 1
    valid = torch.full((rows,), width + extra)
    context = _context(work, size - 1, condition.vocabulary)
    slots = Window(torch.zeros_like(parents), parents, valid).depth
    best, second = _brought_close(logits, context, slots, gap)
    tokens = torch.cat([torch.zeros(rows, 1, dtype=torch.int64), best[:, :-1]], dim=1)
    own, close = best.gather(1, depth - 1), second.gather(1, depth - 1)
    tokens.scatter_(1, depth, own if sibling == "elder" else close)
    if extra:
        tokens[:, width : width + 1] = close if sibling == "elder" else own
    seen = tuple(condition.beside is None or row % 2 == 0 for row in range(rows))
    q = _q(tokens, context, generator, condition.vocabulary) if condition.drawn else None
    return Offer(name, Window(tokens, parents, valid, q), logits, context, tuple(gap for _, gap in cases), seen)


def _context(work: Sequence[Request], most: int, vocabulary: int) -> Context:
    """What the engine tells a policy of requests that have just been admitted."""
    longest = max(len(request.prompt) for request in work) + most + 2
    rows = Rows(len(work), longest, vocabulary, torch.device("cpu"))
    for row, request in enumerate(work):
        rows.admit(row, Live(request, longest, StopWatcher(request.params, most + 2, None)))
    return rows.context(most, Reference(), coupled=False)


def _brought_close(logits: Tensor, context: Context, depth: Tensor, gap: Tensor) -> tuple[Tensor, Tensor]:
    """Change logits [B, W, V] until the target's own token is ``gap`` [B, 1] nats before the next in every slot.

    In a sampled row these are nats with the noise of the draw. Returns both tokens, int64 [B, W].
    """
    heat = context.params.temperature[:, None, None]
    keys = context.ops.noise_keys(context.params.stream, context.length[:, None] + depth, 0)[Purpose.TARGET]
    noise = heat * sampling.gumbel(keys, logits.shape[2]) if bool(heat.any()) else torch.zeros_like(logits)
    best, second = (logits + noise).topk(2, dim=-1).indices.split(1, dim=-1)
    nats = gap[:, :, None] * torch.where(heat > 0, heat, 1.0)
    level = logits.gather(2, second) + noise.gather(2, second) - noise.gather(2, best)
    logits.scatter_(2, best, level + nats)
    return best[:, :, 0], second[:, :, 0]


def _q(tokens: Tensor, context: Context, generator: torch.Generator, vocabulary: int) -> Tensor:
    """Distributions of a chain's proposals, float32 [B, W - 1, V]; one-hot in greedy rows."""
    drawn = torch.randn(len(tokens), tokens.shape[1] - 1, vocabulary, generator=generator).softmax(dim=-1)
    certain = torch.zeros_like(drawn).scatter_(2, tokens[:, 1:, None], 1.0)
    return torch.where(context.params.temperature[:, None, None] > 0, drawn, certain)
