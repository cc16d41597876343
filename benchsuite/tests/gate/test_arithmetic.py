"""Holm's method, attribution and the order of launches, against counting by hand."""

from __future__ import annotations

import secrets
from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any, cast

import pytest

from benchsuite.gate.record import CALL, DECODE, FIRST, PARTS, FigureTimes, GatedRow, Launch, Record
from benchsuite.gate.shift import holm
from benchsuite.gate.sides import LiveSides, StoredSides
from benchsuite.gate.where import attribution, where


@pytest.mark.parametrize(
    ("chances", "rejected"),
    [
        ({}, set()),
        ({"a": 0.5}, {"a"}),
        ({"a": 0.5, "b": 0.25}, {"a", "b"}),  # each exactly at its limit
        ({"b": 0.25, "a": 0.51}, {"b"}),
        ({"a": 0.26, "b": 0.3}, set()),
        ({"c": 0.125, "b": 0.3, "a": 0.0}, {"a", "c", "b"}),
        ({"c": 0.26, "b": 0.3, "a": 0.0}, {"a"}),  # nothing is rejected behind one that is not
    ],
)
def test_holm_rejects_up_to_its_limits(chances: dict[str, float], rejected: set[str]) -> None:
    assert holm(chances, 0.5) == rejected


def _timed(tau: float | None, figure: str = DECODE, **shares: float) -> Launch:
    return Launch({}, {figure: dict.fromkeys(PARTS, 0.0) | shares}, tau)


def test_each_part_accounts_for_its_difference_over_the_mean_of_both_wholes() -> None:
    base, head = [_timed(2.0, draft=1.0, host=2.0)], [_timed(4.0, draft=2.0, host=3.0)]
    moved = {"draft": 0.25, "prefill": 0.0, "verification": 0.0, "K/V": 0.0, "host": 0.25, "engine": 0.0}
    assert attribution(base, head) == {"acceptance": -log(2.0), **moved}
    assert where(base, head) == "acceptance -69.3 %"
    first = [_timed(2.0, FIRST, draft=1.0, host=2.0)], [_timed(4.0, FIRST, draft=2.0, host=3.5)]
    assert attribution(*first, FIRST) == {**moved, "draft": 1 / 4.25, "host": 1.5 / 4.25}
    assert where(*first, FIRST) == "host +35.3 %"


def test_the_middle_launch_of_each_side_counts() -> None:
    base = [_timed(tau, draft=share) for tau, share in ((1.0, 1.0), (2.0, 2.0), (9.0, 90.0))]
    head = [_timed(tau, draft=share) for tau, share in ((1.0, 1.0), (4.0, 6.0), (9.0, 90.0))]
    assert attribution(base, head) == {
        **dict.fromkeys(PARTS, 0.0),
        "acceptance": -log(2.0),
        "draft": 1.0,
    }


def test_where_no_launch_counts_forwards_a_step_is_a_token_and_acceptance_is_not_told() -> None:
    base, head = [_timed(None, engine=1.0)], [_timed(None, engine=3.0)]
    assert attribution(base, head) == {**dict.fromkeys(PARTS, 0.0), "engine": 1.0}
    assert where(base, head) == "engine +100.0 %"


def test_nothing_is_attributed_where_one_launch_lacks_its_parts_or_its_tau() -> None:
    whole, no_tau, no_parts = _timed(2.0, draft=1.0), _timed(None, draft=1.0), Launch({}, {}, 2.0)
    assert where([whole], [whole]) == "acceptance +0.0 %"
    for lacking in (no_tau, no_parts, Launch({})):
        for base, head in (([whole], [lacking]), ([lacking], [whole]), ([whole, lacking], [whole])):
            assert attribution(base, head) == {}
            assert where(base, head) is None
    assert attribution([whole], [whole], FIRST) == {}


class _Numbered:
    """A launcher that numbers its launches, and notes what each was of."""

    def __init__(self) -> None:
        self.asked = list[Any]()

    def measure(self, checkout: Path | None = None, plant: str = "") -> Record:
        self.asked.append((checkout, plant))
        launch = Launch({CALL: FigureTimes((float(len(self.asked)),))})
        return Record({"number": len(self.asked)}, {"r": GatedRow(launches=(launch,))})


def _numbers(record: Record) -> list[float]:
    return [launch.times[CALL].seconds[0] for launch in record.rows["r"].launches]


def test_against_a_file_only_missing_launches_are_made() -> None:
    launcher, said = _Numbered(), list[str]()
    base = Record({"number": 0}, {})
    both = StoredSides(base, cast(Any, launcher), said.append)
    assert both.paired is False
    found = [both.at_least(count) for count in (1, 3, 2)]
    assert [one is base for one, _ in found] == [True] * 3
    assert [_numbers(head) for _, head in found] == [[1.0], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]
    assert [head.made for _, head in found] == [{"number": 1}] * 3
    assert said == ["launch 1 of 1", "launch 2 of 3", "launch 3 of 3"]
    assert launcher.asked == [(None, "")] * 3


def test_live_each_pair_has_both_sides_and_each_two_pairs_both_orders() -> None:
    orders = set()
    for seed in range(8):
        launcher, said = _Numbered(), list[str]()
        both = LiveSides(cast(Any, launcher), Path("there"), said.append, "host=1", seed=seed)
        assert (both.paired, both.seed, both.ran) == (True, seed, [])
        one, two = both.at_least(1), both.at_least(4)
        assert both.at_least(2) == two
        assert said == ["pair 1 of 1", "pair 2 of 4", "pair 3 of 4", "pair 4 of 4"]
        of = {"base": (Path("there"), ""), "head": (None, "host=1")}
        assert launcher.asked == [of[side] for side in both.ran]
        firsts = both.ran[::2]
        assert [*map(sorted, zip(firsts, both.ran[1::2], strict=True))] == [["base", "head"]] * 4
        assert sorted(firsts[:2]) == sorted(firsts[2:]) == ["base", "head"]
        orders.add(tuple(firsts))
        for side, before, now in zip(("base", "head"), one, two, strict=True):
            places = [float(place) for place, ran in enumerate(both.ran, 1) if ran == side]
            assert (_numbers(before), _numbers(now)) == (places[:1], places)
            assert now.made == {"number": places[0]}
    assert len(orders) == 4, "the order is drawn, and each is as likely"


def test_without_a_seed_a_fresh_one_of_32_bits_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "randbits", lambda bits: bits)
    fresh, given = (LiveSides(cast(Any, None), None, print, seed=seed) for seed in (None, 0))
    assert (fresh.seed, given.seed) == (32, 0)
    assert replace(fresh).seed == 32
