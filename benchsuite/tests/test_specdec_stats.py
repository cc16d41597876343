"""Counters and times of a step: each second is in one part, each proposal is counted at each depth that it reaches."""

from __future__ import annotations

import itertools
from dataclasses import asdict

import pytest

from specdec.devices import Stopwatch
from specdec.stats import Call, Marks, RowStep, Stats, Step

PARTS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
"""Seconds between the marks of a step: a sum of some of them says which."""


def stats() -> Stats:
    """Stats whose stopwatch has the marks of a step with these parts, from number 3 on."""
    return Stats(Stopwatch.recorded([0.0, 0.0, 0.0, *itertools.accumulate(PARTS, initial=50.0)]))


def test_each_second_of_a_step_is_in_one_of_its_parts() -> None:
    step = Step.of((RowStep(0, 0, 0, 1),), 1, Marks(*range(3, 13)))
    times = stats().times(step)
    assert asdict(times) == {
        "control": 1.0,
        "draft": 4.0 + 128.0,
        "target": 8.0,
        "accept": 16.0,
        "commit": 32.0,
        "host": 2.0 + 64.0 + 256.0,
    }
    assert times.booked + times.host == times.rest + times.draft + times.target == sum(PARTS)
    assert times.booked == 1 + 4 + 128 + 8 + 16 + 32


def test_calls_are_added_up_by_name() -> None:
    found = stats()
    found.calls += [Call("admit", 3, 4), Call("release", 4, 5), Call("admit", 5, 6)]
    assert [found.called("admit"), found.called("admit", "release"), found.called()] == [5.0, 7.0, 0.0]


def test_a_step_adds_up_its_rows_and_k_is_its_width_less_the_root() -> None:
    step = Step.of((RowStep(3, 2, 1, 2), RowStep(4, 4, 0, 1)), 5, Marks(*range(10)))
    assert (step.k, step.width, step.rows, step.proposed, step.accepted, step.emitted) == (4, 5, 2, 7, 1, 3)


def test_proposals_are_counted_at_each_depth_and_rows_that_propose_once() -> None:
    """A chain of three of which two are kept, a tree of five nodes and depth two of which one is, and no proposal."""
    found = stats()
    for proposed, deepest, accepted in ((3, 3, 2), (5, 2, 1), (0, 0, 0)):
        found.proposed(proposed, deepest)
        found.accepted(accepted)
        found.steps.append(Step.of((RowStep(proposed, deepest, accepted, accepted + 1),) * 2, 6, Marks(*range(10))))
        found.counts["num_emitted_tokens"] += 2 * (accepted + 1)
    assert (found.proposed_per_pos, found.accepted_per_pos) == ([2, 2, 1], [2, 1])
    assert (found.counts["num_drafts"], found.counts["num_draft_tokens"]) == (2, 8)
    assert found.acceptance_rate == 3 / 8
    assert found.mean_acceptance_length == 1 + 3 / 2
    assert found.tau == pytest.approx(12 / 6)
    assert found.counters()["num_accepted_tokens_per_pos"] == [2, 1]
    assert (stats().acceptance_rate, stats().mean_acceptance_length, stats().tau) == (None, None, None)
