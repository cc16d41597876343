"""Tokens whose logits are always equal: greedy ``match`` takes the first of them, as plain decoding does, at any width.

No tie is certified here: logits of equal rows of the head must be the same bits. The product of a row with one number
that is not 0 is exact in whatever order it is summed. Equal rows of any numbers have equal products in C++ alone: torch
sums those at the edge of a matrix in another order.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from benchsuite.conformance.models import families, tiny
from benchsuite.tests.rig import pairs_in_turn, slow_after
from specdec import Context, Draft, Request, SamplingParams, Window, catalog
from specdec.assembly import Assembly
from specdec.interfaces import Env
from specdec.model import ArenaModel

TWINS = ("twin(every=3)", "twin(every=1)", "elder_twin")
DRAFTS = slow_after(3, [*TWINS, "ngram", "garbage", "oracle(0.8)", "draft_model"])

HEADS = [
    pytest.param(backend, kind)
    for backend, kind in (
        *(("reference", "beside"), ("cpu", "apart"), ("cpu", "drawn")),
        *(("reference", "apart"), ("cpu", "beside")),
    )
]
"""A backend, and the head over it: see ``_head``."""


class Twin(Draft):
    """Proposes plain decoding's output with every so many tokens replaced by another one that has an equal row."""

    def __init__(self, env: Env, every: int = 1) -> None:
        self._plain, self._every = env.plain, every
        self._equal = _equal(env.target.model.get_output_embeddings().weight)
        self._live: dict[int, Request] = {}

    def admit(self, row: int, request: Request, prompt: tuple[int, ...]) -> None:
        """Remember the request."""
        self._live[row] = request

    def propose(self, context: Context) -> Window:
        """Chains."""
        rows = (self.following(context, row) for row in range(context.rows))
        return Window.ragged(
            context, [[right if at % self._every else self.twin(right) for at, right in row] for row in rows]
        )

    def following(self, context: Context, row: int) -> list[tuple[int, int]]:
        """The next places and tokens of plain decoding's output, as many as a row may propose."""
        start = int(context.length_host[row]) - len(self._live[row].prompt)
        room = max(0, int(context.max_proposals_host[row]))
        return list(enumerate(self._plain(self._live[row])))[start : start + room]

    def twin(self, token: int) -> int:
        """The next token with an equal row, and after the last one the first."""
        found = self._equal[token].nonzero()[:, 0].tolist()
        return int(found[(found.index(token) + 1) % len(found)])


class ElderTwin(Twin):
    """Proposes plain decoding's output, and another token with an equal row as each one's elder sibling."""

    branches = True

    def propose(self, context: Context) -> Window:
        """Two slots a level, of which the younger is continued."""
        rows = [[right for _, right in self.following(context, row)] for row in range(context.rows)]
        tokens = [[token for right in row for token in (self.twin(right), right)][: len(row)] for row in rows]
        return Window.ragged(context, tokens, [[slot // 2 * 2 for slot in range(len(row))] for row in rows])


def _equal(head: Tensor) -> Tensor:
    """bool [V, V]: whether two rows of a head are equal."""
    return (head[:, None] == head).all(dim=2)


def _head(kind: str, drawn: Tensor) -> Tensor:
    """A head [V, H]: four equal rows beside each other, or as far apart as there are others; or drawn ones in pairs."""
    tokens, size = torch.arange(len(drawn)), drawn.shape[1]
    if kind == "drawn":
        return drawn[tokens // 2 * 2]
    units = torch.cat([torch.eye(size), -torch.eye(size)])
    return units[(tokens // 4 if kind == "beside" else tokens) % len(units)]


@cache
def _assembly(backend: str, kind: str) -> tuple[Assembly, Tensor]:
    """Engines over a target with such a head, and for each token the first with its row."""
    model = families.build_model("llama")
    weight = model.get_output_embeddings().weight
    weight.data = _head(kind, weight.data)
    plugins = tiny.registry(("draft", "twin", Twin), ("draft", "elder_twin", ElderTwin))
    ops = plugins.backend(backend)
    if ops.chain[0].name != backend:
        pytest.skip("no C++ compiler")
    build = Assembly(plugins, ArenaModel(model, ops), catalog.byte_tokenizer(), max_rows=3, max_length=96)
    return build, _equal(weight).int().argmax(dim=1)


def _accepted(backend: str, kind: str, draft: str, params: Sequence[SamplingParams], ks: Sequence[int]) -> int:
    """Assert that the tokens are plain decoding's for each K, on the reference too; returns how many were accepted."""
    build, first = _assembly(backend, kind)
    work = [Request(row, prompt, one) for row, (prompt, one) in enumerate(zip(tiny.prompts(3), params, strict=True))]
    plain = [_assembly(backend if kind == "drawn" else "reference", kind)[0].plain(request) for request in work]
    for request, tokens in zip(work, plain, strict=True):
        assert request.params.temperature or tuple(first[list(tokens)].tolist()) == tokens
    differ, accepted = list[bool](), 0

    def look(context: Context, window: Window, logits: Tensor, *_: object) -> None:
        differ.append(not torch.equal(logits, logits[..., first]))

    for k in ks:
        engine = build.engine(draft, k=k)
        engine.trace = look
        assert [done.tokens for done in engine.run(work)] == plain, f"K = {k}"
        accepted += engine.stats.counts["num_accepted_tokens"]
    assert not any(differ), "equal rows have other logits"
    return accepted


@pytest.mark.parametrize(("backend", "kind", "draft"), slow_after(3, pairs_in_turn(HEADS, DRAFTS, groups=4)))
def test_the_first_of_tokens_with_equal_rows_is_emitted_at_every_width(backend: str, kind: str, draft: str) -> None:
    accepted = _accepted(backend, kind, draft, [SamplingParams(max_new_tokens=14)] * 3, range(9))
    if draft in TWINS:
        assert (accepted == 0) == (draft == "twin(every=1)"), "a twin that is not the first is accepted nowhere"


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "kind", "draft"), slow_after(1, pairs_in_turn(HEADS[:2], TWINS)))
@pytest.mark.parametrize("beside", [{"logit_bias": {0: 0.0}}, {"temperature": 0.8}], ids=["biased", "sampled"])
def test_a_request_beside_them_that_is_processed_does_not_change_which_of_equals_are_emitted(
    backend: str, kind: str, draft: str, beside: dict[str, Any]
) -> None:
    """Their logits then go through the processors too."""
    greedy = SamplingParams(max_new_tokens=14)
    _accepted(backend, kind, draft, [greedy, SamplingParams(max_new_tokens=14, **beside), greedy], (0, 1, 3, 8))
