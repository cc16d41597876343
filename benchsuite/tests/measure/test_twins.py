"""Twins of prompts, which no run can have seen, and what is concluded from how much a draft guesses of them."""

from __future__ import annotations

import json
import random
import re
from math import sqrt
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchsuite.measure import guards
from benchsuite.measure.arms import Arm
from benchsuite.measure.paired import Series
from benchsuite.measure.plan import MeasuringPlan
from benchsuite.measure.runners import Guessed, Outcome
from benchsuite.measure.session import Bench
from benchsuite.measure.units import Unit
from benchsuite.measure.workloads import KINDS, Question, load_workload
from benchsuite.measure.workloads.twins import NAMES, twin_ids, twin_of
from benchsuite.tests.rig import SETTING
from specdec import Context, Draft, Request, Window
from specdec.catalog import byte_tokenizer
from specdec.devices import Stopwatch
from specdec.stats import Stats

TEXT = "Ask Mira and Jonas for 7 eggs. Mira has 12, and says: Mira, Jonas and Tom Lind had 207."


def twin(text: str, seed: int = 1) -> tuple[str, str]:
    """The line of a twin, and the text below it."""
    line, _, rest = twin_of(text, random.Random(seed)).partition("\n")
    return line, rest


def test_names_and_digits_are_exchanged_alike_wherever_they_occur() -> None:
    line, rest = twin(TEXT)
    assert re.fullmatch(r"\w+, \d{10}\.", line)
    pattern = r"Ask (\w+) and (\w+) for (.) eggs. \1 has (.)(.), and says: \1, \2 and (\w+) (\w+) had (?:\5)0\3\."
    found = re.fullmatch(pattern, rest)
    assert found
    names = [found[1], found[2], found[6], found[7]]
    assert len(set(names)) == 4
    assert set(names) <= set(NAMES)
    assert len({found[3], found[4], found[5]}) == 3


def test_a_text_without_names_and_numbers_has_a_twin_all_the_same() -> None:
    text = "How do I get a red wine stain out of a white cotton shirt?"
    assert {twin(text, seed)[1] for seed in range(9)} == {text}
    assert len({twin_of(text, random.Random(seed)) for seed in range(500)}) == 500


@given(st.text(), st.integers(0, 2**62))
def test_a_twin_is_its_seeds_and_as_long_in_words(text: str, seed: int) -> None:
    one, again = (twin_of(text, random.Random(seed)) for _ in range(2))
    assert one == again
    assert one.split("\n", 1)[1].count(" ") == text.count(" ")


@pytest.mark.parametrize("kind", KINDS)
def test_no_prompt_has_a_name_that_twins_give(kind: str) -> None:
    assert not set(NAMES) & set(re.findall(r"\w+", " ".join(load_workload(kind).prompts)))


def test_names_are_as_many_as_a_text_needs() -> None:
    many = " ".join(f"and {first}{second}" for first in "ABCDEFGH" for second in "abcdefgh")
    _, rest = twin(many)
    assert len(set(re.split(r" ?and ", rest))) == 64 + 1  # and nothing before the first one


@pytest.mark.parametrize("room", [200, 100, 60])
def test_a_twin_that_is_too_long_loses_its_first_words_and_not_its_line(room: int) -> None:
    tokenizer = byte_tokenizer()
    ids = twin_ids(Question((TEXT, "later")), tokenizer, random.Random(1), room)
    line, rest = twin(TEXT)
    whole = Question((f"{line}\n{rest}",)).prompt(tokenizer, ())
    shorter = [Question((f"{line}\n{rest.split(' ', n)[n]}",)).prompt(tokenizer, ()) for n in range(rest.count(" "))]
    assert ids == next(prompt for prompt in shorter if len(prompt) <= room)
    assert (ids == whole) is (room == 200)


def observed(own: Guessed, other: Guessed | None, learnt: bool = False) -> Series:
    """A series that guessed so much of its prompt at the first run and nothing at the second, and so much of its twin,
    with one more prompt that has no twin."""
    runs, units = [], [Unit((Request(number, (1,)),), number) for number in (5, 7, 7)]
    for guessed in (Guessed(0, own.tokens, own.most), own, Guessed(0, own.tokens, own.most)):
        stats = Stats(Stopwatch(torch.device("cpu")))
        stats.counts["num_accepted_tokens"] = guessed.accepted
        runs.append(Outcome([(1,) * guessed.tokens], 1.0, 1.0, guessed.tokens, [], 1, 1.0, stats))
    twins = {7: other} if other else {}
    return Series(Arm(SETTING, draft="ngram", k=2), "exact", units, runs, [], twins=twins, learnt=learnt)


def of(share: float) -> Guessed:
    """A share of what is possible, of a thousand tokens in steps of four proposals."""
    return Guessed(round(800 * share), 1000, 4)


def test_what_is_guessed_is_a_share_of_what_is_possible() -> None:
    assert Guessed(12, 15, 4).share == Guessed(8, 16, 1).share == 1
    assert Guessed(0, 15, 4).share == Guessed(0, 0, 4).share == Guessed(0, 5, 0).share == 0
    assert of(0.25).share == 0.25


@pytest.mark.parametrize("prompts", [4, 9, 16])
def test_a_draft_knew_its_prompts_if_it_guesses_more_of_them_than_of_their_twins_on_average(prompts: int) -> None:
    least = 1 / sqrt(prompts)
    for share, known in ((least + 0.01, True), (least - 0.01, False)):
        found = guards.remembered([observed(of(share), of(0.0))] * prompts)
        assert (found is not None) is known
        assert guards.remembered([observed(of(0.0), of(share))] * prompts) is None, "and never if it guesses less"
    assert guards.remembered([observed(of(1.0), None)]) is None
    assert guards.remembered([]) is None
    assert guards.remembered([observed(of(1.0), of(0.0))] * 3) is None, "few decide nothing"
    said = guards.remembered([observed(of(1.0), of(0.125))] * 4)
    assert (said or "").startswith("known: it guessed 100% of what can be guessed of the prompts, and 12% of twins ")


def test_a_draft_that_guesses_more_of_its_twin_when_asked_again_has_learnt_and_is_compared_with_nothing() -> None:
    series = observed(of(0.2), of(0.2), learnt=True)
    assert (guards.remembered([series]) or "").startswith("learnt: ")
    assert (guards.why_not([series], [series]) or "").startswith("learnt: ")


RECORDED = json.loads((Path(__file__).parents[1] / "recorded" / "twins.json").read_text())
"""Shares of prompts and of their twins on SmolLM2-135M, 48 tokens: by draft, then by workload."""


@pytest.mark.parametrize("draft", RECORDED["shares"])
def test_real_drafts_guess_as_much_of_twins_and_a_cache_in_front_of_them_is_found(draft: str) -> None:
    """Runs of six workloads with a pair of each, as in rows that were measured; a draft that had met the prompts
    guesses all of them, and what it guesses otherwise of their twins."""
    coin, draws = np.random.default_rng(3), 20_000
    pairs = [np.array(found) for found in RECORDED["shares"][draft].values()]
    own, twins = np.stack([found[coin.integers(len(found), size=draws)] for found in pairs]).transpose(2, 0, 1)
    least = guards.KNOWN / sqrt(6)
    assert not ((own - twins).mean(0) > least).any(), "a false alarm"
    assert ((1 - twins).mean(0) > least).mean() >= RECORDED["power"][draft]
    differences = np.concatenate([found[:, 0] - found[:, 1] for found in pairs])
    assert differences.std() < 0.25


class PromptKeeper(Draft):
    """Proposes nothing and keeps the prompts of all requests."""

    def __init__(self) -> None:
        self.prompts = list[tuple[int, ...]]()

    def admit(self, row: int, request: Request, prompt: tuple[int, ...]) -> None:
        self.prompts.append(prompt)

    def propose(self, context: Context) -> Window:
        return Window.root(context)


@pytest.mark.slow
def test_each_draft_of_each_run_has_a_twin_of_its_own_before_its_first_prompt_and_again_after_the_last() -> None:
    seen = list[tuple[int, ...]]()
    for _ in range(2):
        one, two = PromptKeeper(), PromptKeeper()
        bench = Bench(MeasuringPlan(prompts=2))
        for name, draft in (("one", one), ("two", two)):
            bench.registry.add("draft", name, lambda env, made=draft: made, "the twins")
        setting = SETTING.replaced(backend="reference", max_new_tokens=2)
        bench.prepare([Arm(setting, draft=name, k=2) for name in ("one", "two")])
        bench.row(bench.arms[-1], lambda what: None)
        known = [prompt for _, _, prompt in bench.prompts()]
        for draft in (one, two):
            twins, again = draft.prompts[:2], [*known, draft.prompts[0]]
            assert draft.prompts[2:] == again
            assert max(map(len, twins)) <= max(map(len, known))
            seen += twins
    assert len(set(seen)) == 8
