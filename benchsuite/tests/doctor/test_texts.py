"""The target's own texts: its states are those of the unmodified model, and a draft is asked as an engine asks it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchsuite.conformance.models import tiny
from benchsuite.conformance.proposals import proposals
from benchsuite.doctor.texts import OwnText, own_texts, proposed
from benchsuite.tests.rig import saved_head
from specdec import Context, Draft, Env, Request, SamplingParams, Window
from specdec.assembly import Assembly
from specdec.taps import Taps

K = 3
ASKED = Taps((0, 1), final=True)


def small_texts(build: Assembly, count: int = 3, tokens: int = 9) -> list[OwnText]:
    params = SamplingParams(max_new_tokens=tokens)
    asked = [Request(number, prompt, params) for number, prompt in enumerate(tiny.prompts(count))]
    # The last ends sooner, so that it is padded.
    asked[-1] = replace(asked[-1], params=replace(params, max_new_tokens=tokens - 4))
    return own_texts(build, asked, 2, ASKED)


def test_an_own_text_is_plain_decodings_with_the_states_of_the_unmodified_model() -> None:
    build = tiny.assembly(max_rows=2)
    model = build.target.twin()
    for text in small_texts(build):
        assert text.answer == build.plain(text.request)
        seen = model(torch.tensor([text.tokens[:-1]]), output_hidden_states=True, use_cache=False).hidden_states
        last = seen[-1]
        assert text.states is not None
        assert text.states.shape == (1, len(text.tokens) - 1, 3, last.shape[-1])
        torch.testing.assert_close(text.states[:, :, 2], last, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(text.states[:, :, 0], seen[1], atol=1e-4, rtol=1e-4)


def test_what_follows_a_place_ends_with_the_text() -> None:
    text = OwnText(Request(0, (7,)), (1, 2, 3), torch.zeros(1, 3, 1))
    assert text.following(2).tolist() == [[1, 2], [2, 3], [3, -1]]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["eagle", "medusa"])
def test_a_head_proposes_at_each_place_what_an_engine_gets_for_that_text_as_a_prompt(kind: str, tmp_path: Path) -> None:
    build = tiny.assembly(max_rows=3)
    option = "head" if kind == "eagle" else "num_heads=3, head_init"
    draft = f"{kind}({option}={saved_head(kind, build, tmp_path)!r})"
    own, asked = small_texts(build), build.engine(draft, k=K)
    assert asked.draft
    found = proposed(asked.draft, build.target, own, ASKED, K)
    again = proposed(asked.draft, build.target, own, ASKED, K)
    alone, equal = build.engine(draft, k=K, max_rows=1), list[bool]()
    for text, mine, other in zip(own, found, again, strict=True):
        assert mine.shape == (len(text.answer), K)
        assert np.array_equal(mine, other)
        for place, tokens in enumerate(mine.tolist()):
            prefix = text.tokens[: len(text.request.prompt) + place]
            request = Request(0, prefix, SamplingParams(max_new_tokens=K + 1))
            equal.append(list(proposals(alone, [request], most=1)[0].tokens) == tokens)
    assert sum(equal) >= 0.98 * len(equal)


class Peeks(Draft):
    """Proposes what lies behind the end of each row's text, where an answer would lie that was there already."""

    def __init__(self, env: Env) -> None:
        self.seen: list[list[list[int]]] = []

    def propose(self, context: Context) -> Window:
        ends = zip(context.length_host.tolist(), context.tokens.tolist(), context.history.tolist(), strict=True)
        behind = [[*device[end : end + K], *host[end : end + K]] for end, device, host in ends]
        self.seen.append(behind)
        tokens = torch.tensor([row[:K] for row in behind])
        return Window.chain(context.pending, tokens, context.max_proposals)


def test_a_draft_sees_no_token_of_an_answer_before_its_place() -> None:
    build = tiny.assembly(max_rows=3, extra=(("draft", "peeks", Peeks),))
    draft = build.engine("peeks", k=K).draft
    assert isinstance(draft, Peeks)
    own = small_texts(build)
    found = proposed(draft, build.target, own, ASKED, K)
    assert len(draft.seen) == 9
    assert not any(any(row) for step in draft.seen for row in step)
    assert all((mine != text.following(K)).mean() > 0.9 for mine, text in zip(found, own, strict=True))
