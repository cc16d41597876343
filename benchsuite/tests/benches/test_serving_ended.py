"""Outputs that ended by themselves, read by the server itself: as vLLM 0.32 answered, recorded with SmolLM2-135M."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchsuite.benches.serving.certificate import SampledEvidence
from benchsuite.benches.serving.certified import certify
from benchsuite.benches.serving.echoes import echoed
from benchsuite.tests.made_up_servers import MadeUpServer, MadeUpServers
from specdec_plugins.endpoints.answers import AnswerReader
from specdec_plugins.endpoints.client import Ask
from specdec_plugins.endpoints.named import Endpoint
from specdec_plugins.endpoints.replies import Reply

SAID: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "recorded" / "vllm-0.32-ended.json").read_text(encoding="utf-8")
)
PROMPT = "Q: What is 2 + 2?\nA:"
NUMBERS = (*SAID["answer"]["choices"][0]["prompt_token_ids"], *SAID["answer"]["choices"][0]["token_ids"])
BASE, SPEC = Endpoint("base", "http://x"), Endpoint("spec", "http://y")
ASK = Ask(PROMPT, 24, temperature=1.0, seed=3, logprobs=5, stream=False)


def reply_of_vllm(name: str, ask: Ask, numbered: bool) -> Reply:
    """A recorded answer; without the numbers of its tokens as a server gives it that does not know the wish."""
    said = json.loads(json.dumps(SAID[name]))
    if not numbered:
        said["choices"][0] |= {"token_ids": None, "prompt_token_ids": None}
    reader = AnswerReader(ask.max_tokens, ask.echo)
    reader.whole(json.dumps(said).encode(), 1.0)
    return reader.reply(1.0)


def server_that_ended(numbered: bool, cut: int | None = None) -> MadeUpServer:
    """A server that says what was recorded. ``cut``: so many tokens of a text that it reads again are left."""

    def answer(ask: Ask) -> Reply:
        if not ask.echo:
            return reply_of_vllm("answer", ask, numbered)
        name = {PROMPT: "prompt", NUMBERS: "numbers", f"{PROMPT} Two.": "text"}[ask.prompt]
        found = reply_of_vllm(name, ask, numbered)
        return replace(found, tokens=found.tokens[:cut])

    return MadeUpServer(answer)


@pytest.mark.parametrize("numbered", [True, False], ids=["by numbers", "by its text"])
def test_the_token_that_ended_an_output_is_read_with_the_list_at_its_place(numbered: bool) -> None:
    """By numbers it is echoed; a text does not show it, and its list is that of what the server would say next."""
    server = server_that_ended(numbered)
    reply = reply_of_vllm("answer", ASK, numbered)
    assert (reply.text, [token.text for token in reply.tokens]) == (" Two.", [" Two", ".", "<|im_end|>"])
    read = echoed(MadeUpServers({"base": server}).connect, BASE, ASK, reply)
    assert read is not None
    assert [token.text for token in read] == [" Two", ".", "<|im_end|>"]
    assert [token.id for token in read] == ([5713, 30, 2] if numbered else [None] * 3)
    assert [token.logprob for token in read] == pytest.approx([token.logprob for token in reply.tokens], abs=1e-3)
    assert [dict(token.top) for token in read] == [
        pytest.approx(dict(token.top[:5]), abs=1e-3) for token in reply.tokens
    ]
    assert server.asked[-1].prompt == (NUMBERS if numbered else f"{PROMPT} Two.")


@pytest.mark.parametrize("numbered", [True, False], ids=["by numbers", "by its text"])
def test_sampled_outputs_that_ended_are_judged(numbered: bool) -> None:
    """They were INCONCLUSIVE: "splits it into other tokens"."""
    servers = MadeUpServers({"base": server_that_ended(numbered), "spec": server_that_ended(numbered)})
    [found] = certify([BASE, SPEC], [PROMPT], replace(ASK, prompt=""), connect=servers.connect)
    assert isinstance(found.evidence, SampledEvidence)
    assert (found.evidence.left, found.evidence.tokens) == (0, 3)


@pytest.mark.parametrize(("reason", "cut"), [("length", None), ("stop", -2), ("stop", 0)])
def test_only_a_token_that_ended_an_output_is_taken_for_one(reason: str, cut: int | None) -> None:
    """Not where the text was cut at its limit, nor where the rest of it is read otherwise, or not at all."""
    reply = replace(reply_of_vllm("answer", ASK, numbered=False), finish_reason=reason)
    assert echoed(MadeUpServers({"base": server_that_ended(False, cut)}).connect, BASE, ASK, reply) is None


def test_an_output_that_ended_at_once_has_its_end_token_read() -> None:
    reply = reply_of_vllm("answer", ASK, numbered=False)
    alone = replace(reply, text="", tokens=reply.tokens[-1:])
    read = echoed(MadeUpServers({"base": server_that_ended(False)}).connect, BASE, ASK, alone)
    assert read is not None
    assert [(token.text, token.logprob) for token in read] == [("<|im_end|>", None)], "no list names it at that place"
    assert read[0].top == reply_of_vllm("prompt", replace(ASK, echo=True), numbered=False).tokens[-1].top
