"""Lookups and a model at a price: each row takes what brings most, and the model's forwards are paid for."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from operator import mul

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchsuite.conformance.models import tiny
from benchsuite.conformance.priced import AtAnyPrice
from benchsuite.tests.rig import Make
from specdec import Request, SamplingParams
from specdec.lengths import Price
from specdec_plugins.choosing import of_either
from specdec_plugins.track_record import TrackRecord

CHAIN = st.lists(st.sampled_from([0.1, 0.4, 0.6, 0.9, 1.0]), max_size=3).map(
    lambda each: [*itertools.accumulate(each, mul)]
)
WITH_MODEL = "hybrid(sources='ngram(n_min=1), draft_model')"


@given(
    st.lists(st.tuples(CHAIN, CHAIN, st.sampled_from([0.2, 1.0, 3.0])), min_size=1, max_size=2),
    st.sampled_from([0.0, 0.05, 0.3, 0.8]),
    st.sampled_from([0.0, 0.1, 0.5]),
    st.sampled_from([[0, 1, 2, 3], [0, 1, 1, 1]]),
)
def test_no_other_choice_of_sources_and_counts_brings_more(
    rows: list[tuple[list[float], list[float], float]], slot: float, forward: float, takes: list[int]
) -> None:
    """Beside every choice of one or two rows, where each slot costs the same."""
    price = Price(slot * np.arange(7.0), np.array([worth for *_, worth in rows]), forward * np.arange(4.0))

    def value(looked: Sequence[int], drafted: Sequence[int]) -> float:
        brings = sum(
            worth * (sum(found[:own]) + sum(model[:theirs])) - slot * (own + theirs)
            for (found, model, worth), own, theirs in zip(rows, looked, drafted, strict=True)
        )
        return round(brings - forward * takes[max(drafted)], 9)

    each = [
        [(own, 0) for own in range(len(found) + 1)] + [(0, theirs) for theirs in range(1, len(model) + 1)]
        for found, model, _ in rows
    ]
    every = [value(*zip(*picked, strict=True)) for picked in itertools.product(*each)]
    assert value(*of_either(price, [row[0] for row in rows], [row[1] for row in rows], takes)) == max(every)


@given(
    st.lists(st.tuples(CHAIN, CHAIN), min_size=1, max_size=3),
    st.lists(st.sampled_from([0.0, 0.05, 0.4, 1.5]), min_size=9, max_size=9),
)
def test_with_a_model_no_less_is_brought_than_without_it(
    rows: list[tuple[list[float], list[float]]], each: list[float]
) -> None:
    """Also where slots begin passes and fill them."""
    price = Price(np.cumsum([0.0, *each]), np.ones(len(rows)), 0.1 * np.arange(4.0))
    looked, drafted = ([row[source] for row in rows] for source in (0, 1))
    mine, theirs = of_either(price, looked, drafted, [0, 1, 2, 3])
    assert all(not own or not other for own, other in zip(mine, theirs, strict=True))
    taken = [found[:own] + model[:other] for (found, model), own, other in zip(rows, mine, theirs, strict=True)]
    brings = sum(map(sum, taken)) - price.cost[sum(map(len, taken))] - 0.1 * max(theirs)
    assert brings >= price.best(looked)[0] - 1e-9


def test_a_row_that_the_model_served_well_is_told_apart_from_all_rows() -> None:
    """By hand: of two rows one keeps all proposals, the other none; the texts that follow them expect the mean."""
    record = TrackRecord()
    for step in range(40):
        lengths = [10 + step * 3, 10 + step]
        record.seen(lengths)
        for row, length in enumerate(lengths):
            record.asked(row, length, 2)
    well, ill = (record.chances(row, 2) for row in (0, 1))
    assert well[0] > 0.85
    assert ill[0] < 0.15
    record.move(0, 1)
    assert record.chances(1, 2) == well
    record.drop(1)
    assert record.chances(1, 1)[0] == pytest.approx(0.5, abs=0.05)


def test_a_row_whose_model_is_not_asked_expects_what_all_rows_show() -> None:
    record = TrackRecord()
    for step in range(40):
        lengths = [10 + step * 2, 10 + step]
        record.seen(lengths)
        for row, length in enumerate(lengths):
            record.asked(row, length, 1)
    before = record.chances(1, 1)[0]
    for step in range(200):
        record.seen([90 + 2 * step, 200])
        record.asked(0, 90 + 2 * step, 1)
    assert before < 0.2 < 0.4 < record.chances(1, 1)[0]


@pytest.mark.parametrize(("forward", "asks"), [(0.0, True), (5.0, False)])
def test_a_model_is_asked_only_where_its_forwards_are_worth_it(forward: float, asks: bool, assemble: Make) -> None:
    """A forward that costs five tokens brings at most four; outputs are plain decoding's in any case."""
    build = assemble(max_rows=3)
    engine, work = build.engine(WITH_MODEL, k=4), tiny.requests(SamplingParams(max_new_tokens=16), 5)
    engine.controller = AtAnyPrice(4, [0.0], forward)
    outputs = [done.tokens for done in engine.run(work)]
    assert outputs == [done.tokens for done in build.engine(None).run(work)]
    assert (engine.stats.counts["draft_forwards"] > 0) is asks
    assert engine.stats.counts["num_draft_tokens"] > 0, "lookups cost nothing"


@pytest.mark.parametrize("draft", ["ngram", "draft_model", "eagle", WITH_MODEL, "tree(beam=2, depth=2)"])
def test_the_forwards_of_all_steps_are_those_of_the_run(draft: str, assemble: Make) -> None:
    engine = assemble(max_rows=2).engine(draft, k=3)
    engine.run([Request(n, (5, 6, 7 + n), SamplingParams(max_new_tokens=12)) for n in range(3)])
    assert sum(step.draft_forwards for step in engine.stats.steps) == engine.stats.counts["draft_forwards"]
