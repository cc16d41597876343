"""The counters and times of a run, from marks and counts that are given: every figure by itself."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from specdec.devices import Stopwatch
from specdec.stats import Call, Marks, RowStats, RowStep, Stats, Step

MARKS = Marks(*range(10))
WATCH = Stopwatch.recorded([0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 63.0, 127.0, 255.0, 511.0])
"""The parts of a step take 1, 2, 4, … seconds: every sum of them is another number."""


def test_every_part_of_a_step_is_booked_once_and_where_it_belongs() -> None:
    times = Stats(WATCH).times(Step(1, 2, 1, 1, 1, 2, MARKS))
    assert asdict(times) == {
        "control": 1,
        "draft": 4 + 128,
        "target": 8,
        "accept": 16,
        "commit": 32,
        "host": 2 + 64 + 256,
    }
    assert times.booked == 1 + 4 + 8 + 16 + 32 + 128
    assert times.rest == 1 + 16 + 32 + 2 + 64 + 256


def test_only_calls_of_the_asked_names_are_added() -> None:
    stats = Stats(WATCH, calls=[Call("admit", 0, 1), Call("move", 1, 2), Call("admit", 3, 4), Call("release", 5, 6)])
    assert stats.called("admit") == 1 + 8
    assert stats.called("move", "release") == 2 + 32
    assert stats.called("keep") == 0


def test_a_step_of_rows_adds_what_each_did() -> None:
    each = (RowStep(3, 2, 1, 2), RowStep(0, 0, 0, 1), RowStep(5, 5, 5, 6))
    assert Step.of(each, 6, MARKS) == Step(
        k=5, width=6, rows=3, proposed=8, accepted=6, emitted=9, marks=MARKS, each=each
    )


def test_a_row_has_the_slots_of_the_window_to_compute_or_where_padding_costs_nothing_its_own() -> None:
    step = Step.of((RowStep(3, 2, 1, 2), RowStep(0, 0, 0, 1)), 6, MARKS)
    assert (step.slots(skips_padding=False), step.slots(skips_padding=True)) == (6, 2.5)


def test_proposals_and_acceptances_are_counted_by_their_depth() -> None:
    stats = Stats(WATCH)
    for count, deepest, accepted in ((3, 3, 1), (4, 2, 2), (0, 0, 0), (1, 1, 0)):
        stats.proposed(count, deepest)
        stats.accepted(accepted)
    assert stats.proposed_per_pos == [3, 2, 1]
    assert stats.accepted_per_pos == [2, 1]
    assert stats.counts == {"num_drafts": 3, "num_draft_tokens": 8, "num_accepted_tokens": 3}
    assert stats.acceptance_rate == 3 / 8
    assert stats.mean_acceptance_length == 1 + 3 / 3


def test_a_rows_steps_are_counted_by_depth_and_the_last_is_told() -> None:
    row = RowStats(7)
    assert (row.steps, row.asked, row.last, row.confidence) == (0, 0, None, ())
    for step, asked, confidence in (
        (RowStep(3, 3, 1, 2), 4, (0.5, 0.25, 0.125)),
        (RowStep(4, 2, 2, 3), 4, ()),
        (RowStep(1, 1, 0, 1), 2, (0.75,)),
    ):
        row.book(step, asked, confidence)
    assert (row.request, row.steps, row.asked, row.last, row.confidence) == (7, 3, 2, RowStep(1, 1, 0, 1), (0.75,))
    assert row.proposed_per_pos == [3, 2, 1]
    assert row.accepted_per_pos == [2, 1]


def test_a_figure_of_nothing_is_none() -> None:
    stats = Stats(WATCH)
    assert (stats.acceptance_rate, stats.mean_acceptance_length, stats.tau) == (None, None, None)


def test_tau_is_emitted_tokens_over_forwards_of_rows() -> None:
    steps = [Step(1, 2, rows, 0, 0, 0, MARKS) for rows in (2, 3)]
    stats = Stats(WATCH, steps=steps)
    stats.counts["num_emitted_tokens"] = 8
    assert stats.tau == pytest.approx(8 / 5)


def test_every_counter_is_there_from_the_start_and_others_follow() -> None:
    stats = Stats(WATCH, accepted_per_pos=[2, 1])
    none = stats.counters()
    assert none.pop("num_accepted_tokens_per_pos") == [2, 1]
    assert list(none) == [
        *("target_forwards", "prefill_forwards", "draft_forwards", "num_drafts", "num_draft_tokens"),
        *("num_accepted_tokens", "num_emitted_tokens", "host_reads", "kv_appended_tokens_total", "kv_bytes_copied"),
        *("kv_rows_moved_bytes", "allocations"),
    ]
    assert set(none.values()) == {0}
    stats.counts.update(zebra=3, host_reads=2, apple=1)
    found = stats.counters()
    assert list(found)[-3:] == ["apple", "zebra", "num_accepted_tokens_per_pos"]
    assert (found["apple"], found["zebra"], found["host_reads"]) == (1, 3, 2)
