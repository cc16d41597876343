"""Level 0: the finding for each difference between two rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchsuite.gate.counters import compare
from benchsuite.gate.record import GatedRow
from benchsuite.gate.verdict import GateVerdict

COUNTERS: dict[str, Any] = {
    "target_forwards": 10,
    "num_accepted_tokens": 8,
    "num_accepted_tokens_per_pos": [5, 3],
    "draft_forwards": 20,
    "kv_bytes_copied": 0,
    "host_reads": 10,
    "rebuilt_caches": 1,
}
BASE = GatedRow(digest="d", plain_digest="p", counters=COUNTERS)


@pytest.mark.parametrize(
    ("changed", "verdict", "where", "message"),
    [
        ({}, GateVerdict.PASS, None, "7 counters and the emitted tokens repeat exactly"),
        ({"new_counter": 4}, GateVerdict.PASS, None, "repeat exactly"),
        ({"num_accepted_tokens": 7, "target_forwards": 11}, GateVerdict.REGRESSED, "acceptance", "was 8 and is 7"),
        ({"num_accepted_tokens_per_pos": [5, 2]}, GateVerdict.REGRESSED, "acceptance", "was [5, 3] and is [5, 2]"),
        ({"num_accepted_tokens_per_pos": [4, 4]}, GateVerdict.REGRESSED, "acceptance", "was [5, 3] and is [4, 4]"),
        ({"num_accepted_tokens_per_pos": [6, 3]}, GateVerdict.IMPROVED, "acceptance", "was [5, 3] and is [6, 3]"),
        ({"draft_forwards": 21}, GateVerdict.REGRESSED, "draft", "was 20 and is 21"),
        ({"kv_bytes_copied": 4096}, GateVerdict.REGRESSED, "K/V", "was 0 and is 4,096"),
        ({"host_reads": 9}, GateVerdict.IMPROVED, "host", "was 10 and is 9"),
        ({"host_reads": 9, "draft_forwards": 21}, GateVerdict.REGRESSED, "draft", "was 20 and is 21"),
        # A counter of the draft's own: fewer may be worse.
        ({"rebuilt_caches": 0}, GateVerdict.REGRESSED, "draft", "was 1 and is 0"),
        ({"host_reads": None}, GateVerdict.REGRESSED, "host", "was 10 and is no longer counted"),
    ],
)
def test_a_counter_that_differs_is_told_with_both_values_and_its_part(
    changed: dict[str, Any], verdict: GateVerdict, where: str | None, message: str
) -> None:
    head = {name: value for name, value in (COUNTERS | changed).items() if value is not None}
    found = compare("row", BASE, replace(BASE, counters=head))
    assert (found.verdict, found.where) == (verdict, where)
    assert message in found.message


@pytest.mark.parametrize(
    ("head", "verdict", "message"),
    [
        ({"digest": "e"}, GateVerdict.INCONCLUSIVE, "plain emits the baseline's tokens and this row others"),
        ({"digest": "e", "plain_digest": "q"}, GateVerdict.INCONCLUSIVE, "numerics: plain decoding itself"),
        ({"deterministic": False}, GateVerdict.INCONCLUSIVE, "its controller reads the clock and did not before"),
        ({"counters": COUNTERS | {"allocations": 3}}, GateVerdict.INCONCLUSIVE, "the base does not count allocations"),
    ],
)
def test_what_counters_cannot_say_is_inconclusive(head: dict[str, Any], verdict: GateVerdict, message: str) -> None:
    found = compare("row", BASE, replace(BASE, **{"counters": COUNTERS | {"target_forwards": 99}, **head}))
    assert found.verdict == verdict
    assert message in found.message


def test_a_row_whose_controller_reads_the_clock_is_held_to_its_tokens_alone() -> None:
    clocked = replace(BASE, deterministic=False)
    assert compare("row", clocked, replace(clocked, counters={"target_forwards": 99})).verdict == GateVerdict.PASS
    assert compare("row", clocked, replace(clocked, digest="e")).verdict == GateVerdict.INCONCLUSIVE
    assert compare("row", clocked, BASE).verdict == GateVerdict.INCONCLUSIVE
