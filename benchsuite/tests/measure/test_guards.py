"""When speeds cannot be compared: each condition where it just holds, and where it just does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchsuite.measure import guards
from benchsuite.measure.arms import Arm
from benchsuite.measure.conditions import ACROSS, known_conditions
from benchsuite.measure.paired import Series
from benchsuite.measure.runners import Outcome
from benchsuite.tests.rig import SETTING
from specdec import SpecdecError
from specdec.devices import Stopwatch
from specdec.stats import Stats

PIECE = (3, 1, 4, 1, 5, 9, 2, 6)
STRAIGHT = tuple(range(100, 120))


def series(
    *outputs: Sequence[int], proposed: Sequence[int] = (), ops: Sequence[tuple[str, str]] = (), **conditions: str
) -> Series:
    """A series of a draft with one run for each output, by its tokens, its number of proposals, and the ops it ran."""
    outcomes = []
    for number, tokens in enumerate(outputs):
        stats = Stats(Stopwatch(torch.device("cpu")))
        stats.counts["num_draft_tokens"] = proposed[number] if proposed else 1
        stats.ops.update(ops)
        outcomes.append(Outcome([tuple(tokens)], 1.0, 1.0, len(tokens), [], 1, 1.0, stats))
    return Series(Arm(SETTING, draft="ngram", k=2), "exact", [], outcomes, [], conditions=conditions)


def why(ours: Series, base: Series, *across: str) -> str | None:
    return guards.why_not([ours], [base], across)


def test_runs_that_differ_in_nothing_are_comparable() -> None:
    assert why(series(STRAIGHT, dtype="float32"), series(STRAIGHT, dtype="float32")) is None


@pytest.mark.parametrize(
    ("tokens", "looks"),
    [
        ((7,) * 23, True),  # its second half, the longer one, is the shortest that is looked at
        ((7,) * 22, False),
        (PIECE * 6, True),
        (STRAIGHT[:10] + PIECE * 2 + PIECE[:7], False),  # not quite three times
        ((*PIECE, 7) * 6, True),
        ((1, 2, 3, 4, 5) * 4 + (1, 2, 3, 4), False),  # five tokens, and 2.4 times in the half
        ((1, 2, 3, 4) * 6, True),
        (STRAIGHT + (8,) * 19 + (9,), False),  # the loop has ended
        ((8,) * 20 + STRAIGHT, False),
        (STRAIGHT + (8,) * 20, True),
    ],
)
def test_a_loop_is_a_piece_that_fills_the_second_half_at_least_three_times(
    tokens: tuple[int, ...], looks: bool
) -> None:
    assert guards.loops(tokens) is looks


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(0, 30), st.integers(1, 200))
def test_a_loop_is_found_whatever_the_length_of_its_piece(piece: list[int], begin: int, length: int) -> None:
    """A list item that was written again and again was no loop: pieces of up to eight tokens were sought."""
    tokens = (*range(100, 100 + begin), *(piece * 200)[:length])
    half = tokens[len(tokens) // 2 :]
    repeated = [n for n in range(1, len(half)) if 3 * n <= len(half) and half == (half[:n] * len(half))[: len(half)]]
    assert guards.loops(tokens) == (len(half) >= 12 and bool(repeated))


@pytest.mark.parametrize(
    ("text", "looks"), [("so aaa", True), ("so aa", False), ("aaaab", False), ("on: ababab", False)]
)
def test_a_text_may_repeat_a_piece_however_short_it_is(text: str, looks: bool) -> None:
    """Three letters are the shortest half that can hold a piece three times; five letters hold no pair three times."""
    assert guards.repeats_a_piece(text) is looks


def test_half_of_the_baselines_outputs_in_a_loop_are_enough_and_the_arms_own_do_not_count() -> None:
    loop, text = (7,) * 24, (*STRAIGHT, 1, 2, 3, 4)
    assert why(series(text, text), series(text, loop)) == (
        "loops: 1 of 2 outputs repeat one piece to their end, which any lookup guesses"
    )
    assert why(series(loop, loop, loop), series(text, text, loop)) is None
    assert why(series(loop), series(text)) is None


def test_lengths_may_differ_by_a_quarter_of_the_longer_outputs_tokens() -> None:
    assert why(series(STRAIGHT[:15]), series(STRAIGHT)) is why(series(STRAIGHT), series(STRAIGHT[:15])) is None
    for ours, base in ((14, 20), (20, 14)):
        assert (why(series(STRAIGHT[:ours]), series(STRAIGHT[:base])) or "").startswith("lengths: ")
    # Of all tokens together: an output of half the length beside one that is equal.
    assert why(series(STRAIGHT, STRAIGHT[:10]), series(STRAIGHT, STRAIGHT)) is None


def test_lengths_that_differ_either_way_do_not_cancel() -> None:
    """Ten tokens for twenty, and twenty for ten: as many in all."""
    found = why(series(STRAIGHT[:10], STRAIGHT), series(STRAIGHT, STRAIGHT[:10]))
    assert found == "lengths: its outputs and the baseline's differ by 50% of their tokens"


def test_lengths_are_compared_text_by_text_where_a_workload_has_fewer_runs_than_the_baselines() -> None:
    """The run that is missing had shifted all later ones: outputs were held against those of other prompts."""
    short, long = series(STRAIGHT[:10]), series(STRAIGHT)
    assert guards.why_not([short, long], [series(STRAIGHT[:10], STRAIGHT[:10]), long]) is None
    found = guards.why_not([short, long], [series(STRAIGHT[:10], STRAIGHT), short])
    assert (found or "").startswith("lengths: "), "ten and twenty tokens in the second workload"


def test_a_draft_that_proposes_once_in_all_its_runs_has_proposed() -> None:
    base = series(STRAIGHT, STRAIGHT)
    assert why(series(STRAIGHT, STRAIGHT, proposed=[0, 1]), base) is None
    assert (why(series(STRAIGHT, STRAIGHT, proposed=[0, 0]), base) or "").startswith("no proposals: ")


def test_an_op_that_some_of_both_arms_calls_ran_on_one_backend_is_comparable() -> None:
    both = [("linear", "cpu"), ("linear", "reference"), ("sample", "cpu")]
    assert why(series(STRAIGHT, ops=both), series(STRAIGHT, ops=[("linear", "cpu"), ("emit", "reference")])) is None
    assert why(series(STRAIGHT, ops=both), series(STRAIGHT, ops=[("sample", "reference")])) == (
        "backend: sample ran on cpu, the baseline's on reference"
    )


@pytest.mark.parametrize("name", ACROSS)
def test_conditions_must_be_equal_unless_they_are_given_up_by_name(name: str) -> None:
    one: Any = {name: "one"}
    ours, base = series(STRAIGHT, **one), series(STRAIGHT, **{**one, name: "other"})
    assert why(ours, base) == f"{name}: one, the baseline's is other"
    assert why(ours, base, name) is None
    assert why(ours, series(STRAIGHT)) is None, "what only one of them has is no difference"
    others: Any = {"exact", *ACROSS} - {name}
    assert why(ours, base, *others) == f"{name}: one, the baseline's is other"


def test_an_arm_that_was_measured_on_two_machines_is_compared_with_nothing() -> None:
    parts = [series(STRAIGHT, machine=name) for name in ("b", "a")]
    assert guards.why_not(parts, [series(STRAIGHT)]) == "machines: measured on a, b"
    assert guards.why_not(parts[:1], parts[:1]) is None


def test_torchs_threads_are_a_condition_of_a_row_and_of_its_workloads() -> None:
    one, two = (series(STRAIGHT, threads=count) for count in "12")
    assert why(one, two) == "threads: 1, the baseline's is 2"
    assert guards.why_not([one, two], [one, two]) == "threads: measured with 1, 2"
    assert why(two, two) is None


def test_what_may_be_given_up_is_named_in_the_option() -> None:
    assert known_conditions(["runtime", "compile"]) == ("runtime", "compile")
    with pytest.raises(SpecdecError, match=r"unknown condition of --specdec-across 'exact'"):
        known_conditions(["exact"])
