"""Recordings of real servers: what one server says of one run in several places, and in several forms, agrees."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchsuite.engines.record import read_recorded, recorded_requests
from specdec_plugins.endpoints import server_metrics

RECORDED = Path(__file__).parents[1] / "recorded" / "engines"
NAMES = [file.name.removesuffix(".json.gz") for file in sorted(RECORDED.glob("*.json.gz"))]

Answers = Mapping[str, Mapping[str, Any]]


@cache
def answers_of(name: str) -> Answers:
    """The answers of a recording."""
    found: Answers = read_recorded(RECORDED / f"{name}.json.gz")["answers"]
    return found


def objects_of(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The JSON objects of an answer: one, or the pieces of a stream."""
    text: str = answer["text"]
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in (lines or [text])]


def answered_text(answer: Mapping[str, Any]) -> str:
    """The text of an answer to a completion or a chat."""
    choices = [one["choices"][0] for one in objects_of(answer) if one["choices"]]
    return "".join(
        one.get("text") or (one.get("message") or one.get("delta") or {}).get("content") or "" for one in choices
    )


def posted(answers: Answers) -> dict[str, Mapping[str, Any]]:
    """The answers to requests, without pages."""
    return {name: one for name, one in answers.items() if one["body"] is not None}


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_has_an_answer_to_everything(name: str) -> None:
    answers = answers_of(name)
    model = json.loads(answers["v1-models"]["text"])["data"][0]["id"]
    asked = {one.name: (one.path, one.body) for one in recorded_requests(model)}
    assert {name: (one["path"], one["body"]) for name, one in answers.items()} == asked
    assert {one["status"] for one in posted(answers).values()} == {200}


@pytest.mark.parametrize("name", NAMES)
def test_the_page_counted_what_the_answers_say_together(name: str) -> None:
    answers = answers_of(name)
    before, after = (server_metrics.read_page(answers[f"metrics-{when}"]["text"]) for when in ("before", "after"))
    page = server_metrics.between(before, after)
    usage = [objects_of(one)[-1]["usage"]["completion_tokens"] for one in posted(answers).values()]
    assert page.emitted == sum(usage)
    said = [server_metrics.read_body(objects_of(one)[-1]) for one in posted(answers).values()]
    bodies = server_metrics.added(one for one in said if one is not None)
    if name.endswith("plain"):
        assert bodies is None
        assert not page.speculates
    else:
        assert bodies is not None
        assert (page.proposed, page.accepted) == (bodies.proposed, bodies.accepted)
        assert page.accepted is not None
        assert page.accepted > 100
        assert bodies.drafts in (page.drafts, None)  # llama.cpp's answers name no steps
        if bodies.histogram:
            reached = [sum(bodies.histogram[depth:]) for depth in range(1, len(bodies.histogram))]
            assert page.accepted_by_position == tuple(reached)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["text", "ends"])
def test_one_greedy_request_has_one_answer_in_every_form(kind: str, name: str) -> None:
    texts = {answered_text(one) for name, one in posted(answers_of(name)).items() if name.startswith(f"{kind}-")}
    assert len(texts) == 1


@pytest.mark.parametrize("kind", ["text", "ends"])
def test_speculation_changes_no_greedy_answer_of_an_engine(kind: str) -> None:
    texts = defaultdict[str, dict[str, str]](dict)
    for name in NAMES:
        texts[name.partition("-")[0]][name] = answered_text(answers_of(name)[f"{kind}-whole"])
    assert {engine: len(set(found.values())) for engine, found in texts.items()} == {"llama": 1, "vllm": 1}
    assert all(len(found) >= 3 for found in texts.values())


def mean_logprob(name: str) -> float:
    """Of the tokens of a recording's sampled answer, in nats, as its server names them."""
    [choice] = objects_of(answers_of(name)["sampled-logprobs"])[0]["choices"]
    return float(np.mean(choice["logprobs"]["token_logprobs"]))


def test_a_vllm_that_speculates_and_samples_is_not_plain() -> None:
    """A fault of version 0.32 for CPUs (docs/engines.md): a recording of a later one shows whether it is mended."""
    plain = mean_logprob("vllm-plain")
    assert {name for name in NAMES if name.startswith("vllm") and mean_logprob(name) < plain - 2} == {
        "vllm-draft-model",
        "vllm-ngram",
        "vllm-suffix",
    }
