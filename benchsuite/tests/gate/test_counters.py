"""Level 0: the part of every counter, the order of parts, what counters cannot say, and lost kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from benchsuite.gate.counters import compare
from benchsuite.gate.record import GatedRow
from benchsuite.gate.verdict import Finding, GateVerdict

PASS, IMPROVED = GateVerdict.PASS, GateVerdict.IMPROVED
INCONCLUSIVE, REGRESSED = GateVerdict.INCONCLUSIVE, GateVerdict.REGRESSED

# Each counter: its part, a value, and a better one.
KNOWN: dict[str, tuple[str, Any, Any]] = {
    "draft_forwards": ("draft", 20, 19),
    "num_drafts": ("draft", 10, 9),
    "num_draft_tokens": ("draft", 40, 39),
    "num_accepted_tokens": ("acceptance", 8, 9),
    "num_accepted_tokens_per_pos": ("acceptance", [5, 3], [5, 4]),
    "target_forwards": ("acceptance", 12, 11),
    "prefill_forwards": ("verification", 2, 1),
    "kv_appended_tokens_total": ("K/V", 50, 49),
    "kv_bytes_copied": ("K/V", 4096, 2048),
    "kv_rows_moved_bytes": ("K/V", 512, 256),
    "host_reads": ("host", 11, 10),
    "allocations": ("host", 3, 2),
}
EVERY = GatedRow(digest="d", plain_digest="p", counters={name: value for name, (_, value, _) in KNOWN.items()})
BETTER = {name: better for name, (_, _, better) in KNOWN.items()}
ORDER = ("num_accepted_tokens", "kv_bytes_copied", "draft_forwards", "prefill_forwards", "host_reads")
"""A counter of each part, in the order in which a change of several parts is put down to one."""


def _row(**counted: Any) -> GatedRow:
    """The row with these counters, or, where one is None, without it."""
    counters = {**EVERY.counters, **counted}
    return replace(EVERY, counters={name: value for name, value in counters.items() if value is not None})


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _found(finding: Finding) -> tuple[GateVerdict, str | None]:
    assert (finding.row, finding.level, finding.figure, finding.against) == ("row", 0, None, "base")
    return finding.verdict, finding.where


@pytest.mark.parametrize("name", KNOWN)
def test_a_better_counter_improves_its_part_and_the_way_back_or_without_it_is_a_regression(name: str) -> None:
    part, before, better = KNOWN[name]
    texts = _shown(before), _shown(better)
    found = compare("row", EVERY, _row(**{name: better}))
    assert (_found(found), found.message) == ((IMPROVED, part), "{} was {} and is {}".format(name, *texts))
    found = compare("row", _row(**{name: better}), EVERY)
    assert (_found(found), found.message) == ((REGRESSED, part), "{} was {} and is {}".format(name, *texts[::-1]))
    found = compare("row", EVERY, _row(**{name: None}))
    assert (_found(found), found.message) == ((REGRESSED, part), f"{name} was {texts[0]} and is no longer counted")
    found = compare("row", _row(**{name: None}), EVERY)
    assert _found(found) == (INCONCLUSIVE, None)
    assert f"does not count {name}:" in found.message


def test_all_counters_that_only_the_head_has_are_named_in_order_unless_they_are_the_drafts_own() -> None:
    found = compare("row", _row(num_drafts=None, allocations=None), EVERY)
    assert "does not count allocations, num_drafts:" in found.message
    assert _found(compare("row", EVERY, _row(own_counter=4))) == (PASS, None)


@pytest.mark.parametrize(("first", "second"), [*combinations(ORDER, 2)])
def test_of_two_parts_that_changed_alike_the_earlier_one_is_named(first: str, second: str) -> None:
    better = _row(**{first: BETTER[first], second: BETTER[second]})
    part = KNOWN[first][0]
    assert [compare("row", EVERY, better).where, compare("row", better, EVERY).where] == [part, part]


@pytest.mark.parametrize(
    ("base", "head", "verdict", "where", "message"),
    [
        # What got better beside what got worse is neither said nor placed.
        (
            {},
            {"num_accepted_tokens": 9, "allocations": 4, "kv_bytes_copied": 5000},
            *(REGRESSED, "K/V", "kv_bytes_copied was 4,096 and is 5,000; allocations was 3 and is 4"),
        ),
        (
            {},
            {"num_accepted_tokens": 9, "allocations": 2},
            *(IMPROVED, "acceptance", "num_accepted_tokens was 8 and is 9; allocations was 3 and is 2"),
        ),
        # A list of the same sum in another order is no gain, neither of more nor of fewer.
        (
            {"draft_forwards": [3, 1]},
            {"draft_forwards": [1, 3]},
            *(REGRESSED, "draft", "draft_forwards was [3, 1] and is [1, 3]"),
        ),
        (
            {},
            {"num_accepted_tokens_per_pos": [4, 4]},
            *(REGRESSED, "acceptance", "num_accepted_tokens_per_pos was [5, 3] and is [4, 4]"),
        ),
        # A counter of the draft's own: fewer may be worse.
        ({"own": 1}, {"own": 0}, REGRESSED, "draft", "own was 1 and is 0"),
        ({}, {}, PASS, None, "12 counters and the emitted tokens repeat exactly"),
    ],
)
def test_several_counters_lists_and_a_drafts_own_are_judged_together(
    base: dict[str, Any], head: dict[str, Any], verdict: GateVerdict, where: str | None, message: str
) -> None:
    found = compare("row", _row(**base), _row(**head))
    assert (*_found(found), found.message) == (verdict, where, message)


@pytest.mark.parametrize(
    ("base", "head", "verdict", "message"),
    [
        ({}, {"digest": "e"}, INCONCLUSIVE, "plain emits the baseline's tokens and this row others (digest d, now e)"),
        (
            {},
            {"digest": "e", "plain_digest": "q"},
            *(INCONCLUSIVE, "plain decoding itself emits other tokens than the baseline's (digest p, now q)"),
        ),
        ({}, {"deterministic": False}, INCONCLUSIVE, "its controller reads the clock and did not before"),
        ({"deterministic": False}, {}, INCONCLUSIVE, "its controller does not read the clock and did before"),
        ({"deterministic": False}, {"deterministic": False}, PASS, "the same tokens; its controller reads the clock"),
        ({"deterministic": False}, {"deterministic": False, "digest": "e"}, INCONCLUSIVE, "numerics"),
    ],
)
def test_other_tokens_and_a_clock_say_nothing_of_counters(
    base: dict[str, Any], head: dict[str, Any], verdict: GateVerdict, message: str
) -> None:
    """Whatever the counters are: here there are more forwards."""
    found = compare("row", replace(EVERY, **base), replace(_row(target_forwards=99), **head))
    assert _found(found) == (verdict, None)
    assert message in found.message


def _with_ops(ops: Mapping[str, int], steps: int | None, deterministic: bool = True) -> GatedRow:
    counters = {} if steps is None else {"target_forwards": steps}
    return GatedRow(counters=counters, ops=ops, digest="d", plain_digest="p", deterministic=deterministic)


@pytest.mark.parametrize(
    ("base", "head", "steps", "lost"),
    [
        ({"mix on cpu": 1234}, {}, (9, 9), "mix on cpu ran 1,234 times and does not any more (now: no mix)"),
        (
            {"mix on cpu": 4},
            {"mixed on cpu": 4, "mix on triton": 4, "mix on cuda": 1},
            (9, 9),
            "mix on cpu ran 4 times and does not any more (now: mix on triton, mix on cuda)",
        ),
        # What stands after the first "on" is the backend.
        (
            {"mix on triton on host": 4},
            {"mix on cuda": 4},
            (9, 9),
            "mix on triton on host ran 4 times and does not any more (now: mix on cuda)",
        ),
        ({"mix on triton on reference": 4}, {"mix on triton on reference": 9}, (9, 9), None),
        ({"mix on reference": 4}, {}, (9, 9), None),
        ({"mix on cpu": 4}, {"mix on cpu": 3}, (9, 9), None),
        (
            {"mix on reference": 4},
            {"mix on reference": 1005},
            (9, 9),
            "mix on reference ran 4 times and runs 1,005 times",
        ),
        (
            {"mix on cpu": 4},
            {"mix on cpu": 4, "mix on reference": 1},
            (9, 9),
            "mix on reference ran 0 times and runs 1 times",
        ),
        ({"mixed on cpu": 4}, {"mixed on cpu": 4, "mix on reference": 1}, (9, 9), None),
        # As often in fewer steps, and more often in as many more steps, is no loss; in fewer more steps it is.
        ({"mix on reference": 4}, {"mix on reference": 4}, (9, 8), None),
        ({"mix on reference": 4}, {"mix on reference": 8}, (9, 18), None),
        ({"mix on reference": 4}, {"mix on reference": 8}, (9, 17), "mix on reference ran 4 times and runs 8 times"),
        # Steps that are not counted are one.
        ({"mix on reference": 2}, {"mix on reference": 3}, (None, 2), None),
        ({"mix on reference": 2}, {"mix on reference": 5}, (None, 2), "mix on reference ran 2 times and runs 5 times"),
        ({"mix on reference": 2}, {"mix on reference": 3}, (2, None), "mix on reference ran 2 times and runs 3 times"),
        # Told in order.
        (
            {"mix on cpu": 4, "cut on cpu": 1},
            {},
            (9, 9),
            "cut on cpu ran 1 times and does not any more (now: no cut); "
            "mix on cpu ran 4 times and does not any more (now: no mix)",
        ),
    ],
)
def test_a_kernel_is_lost_where_it_ran_or_where_the_reference_runs_more_in_each_step(
    base: dict[str, int], head: dict[str, int], steps: tuple[int | None, int | None], lost: str | None
) -> None:
    """Before anything else is looked at, and on the same machine alone."""
    before, now = (_with_ops(*side) for side in zip((base, head), steps, strict=True))
    for other in (now, replace(now, digest="e")):
        found = compare("row", before, other)
        if lost is None:
            assert found.where != "kernels"
        else:
            assert (*_found(found), found.message) == (REGRESSED, "kernels", lost)
        assert compare("row", before, other, same_machine=False).where != "kernels"


def test_where_the_controller_reads_the_clock_only_a_new_call_of_the_reference_is_a_loss() -> None:
    base = _with_ops({"mix on reference": 4, "cut on cpu": 1}, 9, deterministic=False)
    more = _with_ops({"mix on reference": 99, "cut on cpu": 1}, 9, deterministic=False)
    new = _with_ops({"mix on reference": 4, "cut on cpu": 1, "cut on reference": 2}, 9, deterministic=False)
    assert compare("row", base, more).verdict == PASS
    assert compare("row", base, new).message == "cut on reference ran 0 times and runs 2 times"
