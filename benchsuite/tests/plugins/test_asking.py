"""At a price a head is asked where it brings something, goes as deep as that is worth, and is believed as it should."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchsuite.conformance.priced import AtAnyPrice
from benchsuite.tests.rig import Make, saved_head
from specdec import Request, SamplingParams
from specdec.lengths import Price
from specdec_plugins.asking import OwnRecord, goes_on

TEXT = "eagle(head={eagle!r}, leaves=2)"
BEHIND = "hybrid(sources='ngram(n_min=1), eagle(head={eagle}, leaves=2)')"


def price(slot: float, forward: float, rows: int = 1) -> Price:
    """Every slot and every forward costs the same, in tokens."""
    return Price(slot * np.arange(9.0 * rows), np.ones(rows), forward * np.arange(6.0))


def times_asked(record: OwnRecord, told: list[float], kept: Sequence[int], at: Price) -> int:
    """In how many steps row 0 is asked; in each the head tells these chances and so many proposals would be kept."""
    asked = 0
    for right in kept:
        if wanted := any(record.rooms(at, [4], 4)):
            record.told(0, 4, sum(told))
        record.came([right if wanted else 0])
        asked += wanted
    return asked


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=3),
    st.sampled_from([0.0, 0.01, 0.1]),
    st.floats(0, 1),
    st.integers(0, 4),
)
def test_one_more_depth_is_worth_half_of_what_is_alive_over_slots_and_a_forward(
    alive: list[float], slot: float, forward: float, depth: int
) -> None:
    due = sum(max(0.0, chance / 2 - slot) for chance in alive)
    if abs(due - forward) > 1e-9:
        assert goes_on(price(slot, forward, len(alive)), depth, alive) is (due > forward)


def test_a_head_that_is_sure_and_wrong_is_neither_believed_nor_asked_for_long() -> None:
    """And one that is as right as it says is believed, and asked in every step."""
    wrong, right, at = OwnRecord(), OwnRecord(), price(0.01, 0.05)
    times_asked(wrong, [0.9, 0.8], [0] * 60, at)
    assert times_asked(wrong, [0.9, 0.8], [0] * 40, at) < 12
    assert wrong.believed([0.9])[0] < 0.3
    assert times_asked(right, [1.0, 1.0], [2] * 100, at) == 100
    assert right.believed([0.9])[0] == pytest.approx(0.9, abs=0.01)


def test_a_head_is_believed_as_far_as_it_is_right() -> None:
    """One that is sure to 0.9 and right in every third step."""
    text = OwnRecord()
    assert times_asked(text, [0.9], [0, 0, 1] * 60, price(0.0, 0.0)) == 180
    assert text.believed([0.9])[0] == pytest.approx(1 / 3, abs=0.12)


def test_a_head_is_asked_again_once_its_text_has_changed() -> None:
    """Not once in so many steps as it is forgotten in; and where it goes on failing, not much more often."""
    text, at = OwnRecord(), price(0.01, 0.1)
    times_asked(text, [0.9], [0] * 60, at)
    assert times_asked(text, [0.9], [0] * 640, at) <= 20
    assert times_asked(text, [0.9], [2] * 200, at) > 100


def test_tokens_that_another_source_proposed_say_nothing_of_the_head() -> None:
    """Beside a twin that saw none of the steps in which a lookup's proposals were kept."""
    record, twin, at = OwnRecord(), OwnRecord(), price(0.0, 0.0)
    for one in (record, twin):
        for _ in range(9):
            times_asked(one, [0.9, 0.4], [0], at)
            one.came([9 if one is record else 0])
    assert record.believed([0.9, 0.4]) == twin.believed([0.9, 0.4])
    assert record.chances(0, 4) == twin.chances(0, 4)


@pytest.mark.parametrize("forgets", ["move", "drop"])
def test_a_rows_record_goes_where_its_text_goes(forgets: str) -> None:
    """Beside a twin whose text was in that row from the beginning, or that never had it."""
    coins, one, twin = random.Random(5), OwnRecord(), OwnRecord()
    for _ in range(30):
        kept = coins.randrange(3)
        for record, row in ((one, 0), (twin, 1)):
            record.told(row, 3, 1.0)
            record.came([kept, kept])
    if forgets == "move":
        one.move(0, 1)
    else:
        one.drop(0)
        twin.drop(1)
    assert [one.chances(row, 3) for row in (0, 1)] == [twin.chances(row, 3) for row in (0, 1)]


@pytest.mark.parametrize("draft", [TEXT, BEHIND])
def test_dearer_forwards_are_fewer_and_no_output_is_another(draft: str, tmp_path: Path, assemble: Make) -> None:
    """Prompts of several rows, greedy and sampled; a forward that costs five tokens brings at most two."""
    build = assemble(max_rows=3)
    head = saved_head("eagle", build, tmp_path)
    work = [
        Request(n, text, SamplingParams(max_new_tokens=20, temperature=n % 2 * 0.8))
        for n, text in enumerate([(5, 6, 7, 5, 6, 7, 5, 6), (1, 2, 3, 4, 1, 2), (9, 8), (3, 3, 3, 3, 3)])
    ]
    plain, forwards = [done.tokens for done in build.engine(None).run(work)], []
    for forward in (0.0, 0.02, 5.0):
        engine = build.engine(draft.format(eagle=head), k=6)
        engine.controller = AtAnyPrice(6, [0.0], forward)
        assert [done.tokens for done in engine.run(work)] == plain
        forwards.append(engine.stats.counts["draft_forwards"])
    assert forwards[0] > forwards[1] > forwards[2]
    assert forwards[2] == 0
