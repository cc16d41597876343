"""Engines with planted faults: which check of the kit finds each."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from benchsuite import conformance
from benchsuite.conformance.claims import failures
from benchsuite.tests.faulty_engines import ENGINES, Born, Cached, Fickle
from benchsuite.tests.rig import slow_after
from specdec import DraftCounts, Generation, Peer, Request
from specdec_plugins.engines.transformers import Transformers

LONG = {(Fickle, "nothing_is_kept"), (Born, "greedy_runs_repeat"), (Cached, "nothing_is_kept")}
"""Faults that take a second to be found."""


@pytest.mark.parametrize(
    ("fault", "check", "message"),
    slow_after(8, [pytest.param(*case, marks=[pytest.mark.slow] if case[:2] in LONG else []) for case in ENGINES]),
)
def test_a_planted_fault_is_found_by_its_check(fault: type[Transformers], check: str, message: str) -> None:
    checks = conformance.engine("planted", factory=fault, refuses=["cache=sttic"])
    said = next(failures(checks, only=check), None)
    assert said, f"{check} finds nothing"
    assert re.search(message, said[1], re.DOTALL), said


@pytest.mark.slow
def test_an_engine_without_fault_is_certified() -> None:
    assert dict(failures(conformance.engine("planted", factory=Transformers, refuses=["cache=sttic"]))) == {}


class ToldPeer(Peer):
    """Gives what it was told for each request, and logits for some tokens."""

    def __init__(self, given: Sequence[Generation], logits: Callable[[int], int | None] = lambda index: None) -> None:
        self._given, self._logits, self._at = given, logits, 0

    def described(self) -> str:
        return "told"

    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        self._at += 1
        return [self._given[(self._at - 1) % len(self._given)]]

    def logits_at(self, request: Request, index: int) -> Tensor | None:
        best = self._logits(index)
        return None if best is None else torch.eye(9)[best]


def verdict_of(peer: Peer, check: str, monkeypatch: pytest.MonkeyPatch, text: str = "transformers") -> str | None:
    """What a check says of a peer's failure; None if it passes."""
    kit = conformance.engine(text)
    monkeypatch.setattr(kit, "peer", lambda self: peer)
    return next((said for _, said in failures(kit, only=check)), None)


EMISSIONS: list[tuple[tuple[int, ...], int, bool]] = [
    ((1, 2), 3, True),
    ((1,), 1, True),
    ((1, 1), 3, False),
    ((1, 3), 3, False),
    ((0, 3), 3, False),
    ((), 0, False),
]


@pytest.mark.parametrize(("counts", "tokens", "fine"), EMISSIONS)
def test_emissions_add_up_and_each_has_a_token(
    counts: tuple[int, ...], tokens: int, fine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Generation(tuple(range(tokens)), tuple((0.1, count) for count in counts), 0.2)
    said = verdict_of(ToldPeer([one]), "emissions_have", monkeypatch)
    assert (said is None) == fine
    assert fine or f"emissions of {list(counts)} tokens for {tokens}" in str(said)


FORWARDS: list[tuple[str, tuple[int, ...], int | None, bool]] = [
    ("transformers", (1, 1, 1), 2, True),
    ("transformers", (1, 1, 1), 1, False),
    ("transformers", (1, 1, 1), 3, True),
    ("transformers", (2, 1), 2, False),
    ("transformers", (2, 1), None, True),
    ("transformers_prompt_lookup(k=3)", (4, 1), 1, True),
    ("transformers_prompt_lookup(k=3)", (5, 1), 1, False),
    ("transformers_prompt_lookup(k=3)", (4, 4, 1), 1, False),
]


@pytest.mark.parametrize(("text", "counts", "forwards", "fine"), FORWARDS)
def test_a_forward_emits_k_and_one_tokens_and_every_later_emission_has_one(
    text: str, counts: tuple[int, ...], forwards: int | None, fine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Generation((1,) * sum(counts), tuple((0.1, count) for count in counts), 0.2, forwards)
    assert (verdict_of(ToldPeer([one]), "forwards_explain", monkeypatch, text) is None) == fine


COUNTS: list[tuple[str, int, int | None, int | None, bool]] = [
    ("transformers_prompt_lookup(k=3)", 9, 4, 4, True),
    ("transformers_prompt_lookup(k=3)", 9, 4, 3, False),
    ("transformers_prompt_lookup(k=3)", 9, 4, 7, True),  # the last step accepted three beyond the end
    ("transformers_prompt_lookup(k=3)", 9, 4, 8, False),
    ("transformers", 3, 2, 0, True),
    ("transformers", 3, 2, 1, False),
    ("transformers", 3, 2, None, True),
    ("transformers", 3, None, 1, True),
]


@pytest.mark.parametrize(("text", "tokens", "forwards", "accepted", "fine"), COUNTS)
def test_accepted_proposals_are_the_tokens_that_no_forward_explains(
    text: str, tokens: int, forwards: int | None, accepted: int | None, fine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = DraftCounts(accepted=accepted)
    one = Generation((1,) * tokens, ((0.1, tokens),), 0.2, forwards, counts=counts)
    assert (verdict_of(ToldPeer([one]), "counts_explain", monkeypatch, text) is None) == fine


TIMES: list[tuple[tuple[float, ...], float, bool]] = [
    ((0.0, 1e-6), 1e-6, True),
    ((2e-6, 1e-6), 2e-6, False),
    ((-1e-6,), 1e-6, False),
    ((1e-6,), 0.0, False),
    ((1e-6,), 1.0, False),
]


@pytest.mark.parametrize(("times", "seconds", "fine"), TIMES)
def test_emissions_lie_between_the_call_and_its_end(
    times: tuple[float, ...], seconds: float, fine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Generation((1,) * len(times), tuple((at, 1) for at in times), seconds)
    assert (verdict_of(ToldPeer([one]), "times_never", monkeypatch) is None) == fine


LOGITS: list[tuple[Callable[[int], int | None], bool]] = [
    (lambda index: index % 9 if index < 6 else None, True),
    (lambda index: None, True),
    (lambda index: index if index == 0 else None, False),
    (lambda index: None if index == 3 else index if index < 6 else None, False),
    (lambda index: None if index == 5 else index if index < 6 else None, False),
    (lambda index: 8 if index == 3 else index if index < 6 else None, False),
    (lambda index: min(index, 6), False),
]


@pytest.mark.parametrize(("logits", "fine"), LOGITS, ids=range(len(LOGITS)))
def test_logits_are_asked_for_at_the_beginning_the_middle_the_end_and_past_it(
    logits: Callable[[int], int | None], fine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Generation((0, 1, 2, 3, 4, 5), ((0.1, 6),), 0.1)
    assert (verdict_of(ToldPeer([one], logits), "logits_are_those", monkeypatch) is None) == fine


def test_an_end_token_is_the_sixth_or_the_last_of_a_short_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """The output ends with it where it first occurs."""
    for whole, ended in (((1, 2, 3, 2, 5, 6, 7), (1, 2, 3, 2, 5, 6)), ((1, 2, 1), (1,)), ((4,), (4,))):
        asked = list[tuple[int, ...]]()

        class Ending(ToldPeer):
            def generate(self, requests: Sequence[Request], *, kept: Any = asked) -> list[Generation]:
                kept.extend(request.params.eos for request in requests)
                return super().generate(requests)

        pair = [Generation(tokens, (), 0.1) for tokens in (whole, ended)]
        assert verdict_of(Ending(pair), "first_end_token", monkeypatch) is None
        assert asked == [(), (ended[-1],)] * 3
        assert verdict_of(ToldPeer([pair[0], replace(pair[0], tokens=(*ended, 9))]), "first_end_token", monkeypatch)
