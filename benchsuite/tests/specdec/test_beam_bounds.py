"""A beam search at its bounds: what is refused and in which words, what may still improve, what is counted."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from benchsuite.conformance.models import families
from benchsuite.conformance.models.tiny import prompts, registry
from specdec import Request, SamplingParams, SpecdecError, beam
from specdec.beam import FLOOR, Beams, BeamSearch, Hypothesis, _Beam, _may_improve
from specdec.model import ArenaModel

PROMPT = prompts(1)[0]


@cache
def _target(family: str = "llama") -> ArenaModel:
    return ArenaModel(families.build_model(family, dtype=torch.float64), registry().backend())


def _asked(prompt: tuple[int, ...] = PROMPT, **params: Any) -> Request:
    return Request(0, prompt, SamplingParams(**{"max_new_tokens": 4, **params}))


def _found(asked: Request, beams: Beams, width: int = 4, max_length: int = 128) -> tuple[Hypothesis, ...]:
    return BeamSearch(_target(), width=width, max_length=max_length).run([asked], beams)[0]


def test_beams_that_say_nothing_are_transformers_defaults() -> None:
    assert vars(Beams()) == {"width": 4, "returned": 1, "length_penalty": 1.0, "early_stopping": False}


def test_both_ends_of_every_range_of_beams_are_accepted() -> None:
    for given in ({"width": 1}, {"returned": 4}, {"length_penalty": -5.0}, {"length_penalty": 5.0}):
        Beams(**given)
    for penalty in (-5, 0, 5):
        assert Beams(length_penalty=penalty).length_penalty == penalty


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("width", 0, "a whole number, 1 or more"),
        ("width", 2.0, "a whole number, 1 or more"),
        ("returned", True, "a whole number from 1 to the width, 4"),
        ("returned", 2.0, "a whole number from 1 to the width, 4"),
        ("length_penalty", True, "a number from -5.0 to 5.0"),
        ("length_penalty", -5.01, "a number from -5.0 to 5.0"),
        ("length_penalty", 5.01, "a number from -5.0 to 5.0"),
        ("length_penalty", None, "a number from -5.0 to 5.0"),
        ("early_stopping", 0, 'True, False or "never"'),
    ],
)
def test_beams_out_of_range_are_refused_in_these_words(field: str, value: Any, expected: str) -> None:
    with pytest.raises(SpecdecError) as refused:
        Beams(**{field: value})
    assert str(refused.value) == f"{field} is {value!r}; expected {expected}"


@pytest.mark.parametrize("width", [True, 1.0, -1])
def test_a_search_has_a_whole_number_of_rows(width: Any) -> None:
    with pytest.raises(SpecdecError) as refused:
        BeamSearch(_target(), width=width, max_length=16)
    assert str(refused.value) == f"width is {width!r}; expected a whole number, 1 or more"


def test_a_score_is_the_log_probability_by_the_length_to_the_power_of_the_penalty() -> None:
    assert Beams(length_penalty=2).score(-8.0, 2) == -2.0
    assert Beams(length_penalty=3).score(-8.0, 2) == -1.0
    assert Beams(length_penalty=0).score(-8.0, 7) == -8.0
    assert Beams(length_penalty=-1.0).score(-8.0, 2) == -16.0


@pytest.mark.parametrize(
    ("early", "penalty", "width", "ended", "goes_on"),
    [
        # The best beam has 2 of 8 tokens and the log-probability -8: now its score is -4, at 8 tokens -1.
        (False, 1.0, 2, [-1.0], True),
        (True, 1.0, 2, [-1.0], True),
        ("never", 1.0, 2, [-1.0], True),
        (False, 1.0, 2, [-1.0, -3.9], False),
        (False, 1.0, 2, [-1.0, -4.0], False),
        (False, 1.0, 2, [-1.0, -4.1], True),
        (False, 1.0, 3, [-1.0, -2.0, -4.1], True),
        (False, 1.0, 3, [-4.1, -5.0, -3.9], False),
        (True, 1.0, 2, [-1.0, -4.1], False),
        ("never", 1.0, 2, [-0.5, -1.1], True),
        ("never", 1.0, 2, [-0.5, -1.0], False),
        ("never", 1.0, 2, [-0.5, -0.9], False),
        ("never", 0.5, 2, [-0.5, -8 / 8**0.5 - 0.01], True),
        ("never", 0.5, 2, [-0.5, -8 / 8**0.5 + 0.01], False),
        # Without a reward for length the present score is the best: -8 at 0, -16 at -1 and -64 at 8 tokens.
        ("never", 0.0, 2, [-1.0, -8.1], True),
        ("never", 0.0, 2, [-1.0, -7.9], False),
        ("never", -1.0, 2, [-1.0, -16.1], True),
        ("never", -1.0, 2, [-1.0, -15.9], False),
        # One beam is greedy decoding and ends with its first end token.
        (False, 1.0, 1, [-9.0], False),
        ("never", 1.0, 1, [-9.0], False),
        (False, 1.0, 1, [], True),
    ],
)
def test_a_search_goes_on_while_its_best_beam_may_beat_the_worst_ended_text(
    early: Any, penalty: float, width: int, ended: list[float], goes_on: bool
) -> None:
    done = [Hypothesis((1,), score, "eos") for score in ended]
    beams = Beams(width, 1, penalty, early)
    assert _may_improve(_Beam(0, (5, 6, 7), -8.0), done, beams, length=2, limit=8) is goes_on


def test_before_all_places_are_taken_a_beam_must_score_above_the_floor() -> None:
    for power, goes_on in ((-5.0, False), (-4.0, True)):
        # -4e5 * 10^5 is below the floor of -1e9, -4e5 * 10^4 is not above it either; -4e4 * 10^4 is.
        beams = Beams(2, 1, power)
        assert _may_improve(_Beam(0, (1,), -4e4), [], beams, length=10, limit=20) is goes_on
    assert FLOOR == -1e9
    assert _may_improve(_Beam(0, (1,), -1e9), [], Beams(2, 1, 0.0), length=1, limit=20) is False
    assert _may_improve(_Beam(0, (1,), -0.99e9), [], Beams(2, 1, 0.0), length=1, limit=20) is True


def test_a_text_that_scores_no_more_than_the_floor_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _found(_asked(), Beams(4, 4))
    assert len(whole) == 4
    assert len({one.score for one in whole}) == 4
    monkeypatch.setattr(beam, "FLOOR", whole[2].score)
    assert _found(_asked(), Beams(4, 4)) == whole[:2]


def test_a_prompt_of_one_token_and_the_first_and_last_token_of_the_vocabulary_are_searched() -> None:
    for prompt in ((0,), (_target().vocabulary - 1,), (0, _target().vocabulary - 1)):
        found = _found(_asked(prompt), Beams(2, 2), width=2)
        assert [len(one.tokens) for one in found] == [4, 4]


def test_a_prompt_may_leave_room_for_one_token() -> None:
    found = _found(_asked((1,) * 15), Beams(2, 2), width=2, max_length=16)
    assert [(len(one.tokens), one.finish_reason) for one in found] == [(1, "length")] * 2
    with pytest.raises(SpecdecError) as refused:
        _found(_asked((1,) * 16), Beams(2, 2), width=2, max_length=16)
    assert str(refused.value) == (
        "the prompt of request 0 has 16 tokens; expected 1 to 15 (the beam search was built for 16, the model has 512 "
        "positions)"
    )


def test_where_the_likeliest_tokens_of_every_beam_are_end_tokens_as_many_beams_as_before_grow_on() -> None:
    # A bias is added to log-probabilities here, so both end tokens come first in most steps; a steep penalty makes long
    # texts of a negative score gain. With too few candidates the text that grows to the limit is another one.
    asked = _asked(eos=(5, 9), logit_bias={5: 5.4, 9: 5.4}, max_new_tokens=6)
    found = _found(asked, Beams(2, 2, 5.0, "never"), width=2)
    assert [(len(one.tokens), one.finish_reason) for one in found] == [(1, "eos"), (6, "eos")]


def test_each_chunk_of_a_prompt_is_counted_and_counts_are_of_the_last_run() -> None:
    search = BeamSearch(_target(), width=2, max_length=400)
    long = (PROMPT * 20)[:300]
    for _ in range(2):
        search.run([_asked(long), _asked(PROMPT)], Beams(2))
        assert search.counts["prefill_forwards"] == 2 + 1
        assert search.counts["target_forwards"] == search.counts["host_reads"] == 4 + 4


def test_beams_take_the_lowest_rows_and_a_forward_runs_no_more_rows_than_that(monkeypatch: pytest.MonkeyPatch) -> None:
    target = _target()
    seen: list[tuple[int, int, int]] = []
    forward = target.forward

    def noted(arena: Any, window: Any, rows: slice, longest: int) -> Any:
        seen.append((rows.start, rows.stop, longest))
        return forward(arena, window, rows, longest)

    monkeypatch.setattr(target, "forward", noted)
    BeamSearch(target, width=4, max_length=128).run([_asked()], Beams(2, 2))
    # As many cells are committed before a step as there are tokens but the last.
    assert seen == [(0, 1 if step == 0 else 2, len(PROMPT) - 1 + step) for step in range(4)]


def test_a_least_length_that_is_reached_changes_nothing_any_more() -> None:
    plain = _found(_asked(max_new_tokens=6), Beams(3, 3))
    assert _found(_asked(max_new_tokens=6, min_new_tokens=2, eos=(257,)), Beams(3, 3)) == plain
    later = replace(_asked(max_new_tokens=6), emitted=3)
    assert _found(later, Beams(3, 3)) == plain, "emitted tokens count for penalties alone"
