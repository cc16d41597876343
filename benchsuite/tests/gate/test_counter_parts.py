"""Level 0, whole findings: the part of every counter, the order of parts, and which changes of kernels are a loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from benchsuite.gate.counters import _lost_kernels, compare
from benchsuite.gate.record import GatedRow
from benchsuite.gate.verdict import GateVerdict

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


def _finding(verdict: str, message: str, where: str | None) -> dict[str, Any]:
    untimed = {"figure": None, "change": None, "low": None, "high": None, "launches": 0, "against": "base"}
    return {"row": "row", "level": 0, "verdict": verdict, "message": message, "where": where, **untimed}


def _row(**counted: Any) -> GatedRow:
    return replace(EVERY, counters={**EVERY.counters, **counted})


@pytest.mark.parametrize("name", KNOWN)
def test_a_better_counter_improves_its_part_and_the_way_back_is_a_regression(name: str) -> None:
    part, before, better = KNOWN[name]
    texts = [f"{value:,}" if isinstance(value, int) else str(value) for value in (before, better)]
    found = compare("row", EVERY, _row(**{name: better}))
    assert found.record() == _finding("IMPROVED", f"{name} was {texts[0]} and is {texts[1]}", part)
    found = compare("row", _row(**{name: better}), EVERY)
    assert found.record() == _finding("REGRESSED", f"{name} was {texts[1]} and is {texts[0]}", part)


@pytest.mark.parametrize("name", KNOWN)
def test_a_known_counter_that_only_the_head_has_asks_for_another_baseline(name: str) -> None:
    lacking = replace(EVERY, counters={key: value for key, value in EVERY.counters.items() if key != name})
    message = f"the base does not count {name}: make the baseline again"
    assert compare("row", lacking, EVERY).record() == _finding("INCONCLUSIVE", message, None)
    gone = f"{name} was {KNOWN[name][1] if name != 'kv_bytes_copied' else '4,096'} and is no longer counted"
    assert compare("row", EVERY, lacking).record() == _finding("REGRESSED", gone, KNOWN[name][0])


def test_all_counters_that_only_the_head_has_are_named_in_order() -> None:
    lacking = replace(EVERY, counters={"target_forwards": 12})
    message = compare(
        "row", lacking, replace(EVERY, counters={"target_forwards": 12, "num_drafts": 1, "allocations": 1})
    )
    assert message.message == "the base does not count allocations, num_drafts: make the baseline again"


@pytest.mark.parametrize(("first", "second"), [*combinations(ORDER, 2)])
def test_of_two_parts_that_changed_alike_the_earlier_one_is_named(first: str, second: str) -> None:
    better = _row(**{first: BETTER[first], second: BETTER[second]})
    part = KNOWN[first][0]
    assert [compare("row", EVERY, better).where, compare("row", better, EVERY).where] == [part, part]


def test_what_got_better_beside_what_got_worse_is_neither_said_nor_placed() -> None:
    found = compare("row", EVERY, _row(num_accepted_tokens=9, allocations=4, kv_bytes_copied=5000))
    message = "kv_bytes_copied was 4,096 and is 5,000; allocations was 3 and is 4"
    assert found.record() == _finding("REGRESSED", message, "K/V")
    found = compare("row", EVERY, _row(num_accepted_tokens=9, allocations=2))
    message = "num_accepted_tokens was 8 and is 9; allocations was 3 and is 2"
    assert found.record() == _finding("IMPROVED", message, "acceptance")


def test_a_list_of_the_same_sum_in_another_order_is_no_gain() -> None:
    found = compare("row", _row(draft_forwards=[3, 1]), _row(draft_forwards=[1, 3]))
    assert found.record() == _finding("REGRESSED", "draft_forwards was [3, 1] and is [1, 3]", "draft")


def test_rows_that_repeat_pass_with_the_number_of_their_counters() -> None:
    assert compare("row", EVERY, EVERY).record() == _finding(
        "PASS", "12 counters and the emitted tokens repeat exactly", None
    )


def test_a_clock_that_came_or_went_is_told_and_one_on_both_sides_passes() -> None:
    clocked = replace(EVERY, deterministic=False)
    tail = ": its counters cannot be compared"
    assert [compare("row", *both).record() for both in ((EVERY, clocked), (clocked, EVERY), (clocked, clocked))] == [
        _finding("INCONCLUSIVE", f"its controller reads the clock and did not before{tail}", None),
        _finding("INCONCLUSIVE", f"its controller does not read the clock and did before{tail}", None),
        _finding("PASS", "the same tokens; its controller reads the clock, so its counters need not repeat", None),
    ]


def test_other_tokens_are_plains_or_the_rows_own() -> None:
    own = compare("row", EVERY, replace(EVERY, digest="e"))
    assert own.record() == _finding(
        "INCONCLUSIVE",
        "numerics: plain emits the baseline's tokens and this row others (digest d, now e): it draws differently, or "
        "a near-tie went the other way; counters cannot be compared",
        None,
    )
    plains = compare("row", EVERY, replace(EVERY, digest="e", plain_digest="q"))
    assert plains.record() == _finding(
        "INCONCLUSIVE",
        "numerics: plain decoding itself emits other tokens than the baseline's (digest p, now q), as another "
        "processor, torch or set of weights may; counters cannot be compared; make the baseline again where the gate "
        "runs",
        None,
    )


@pytest.mark.parametrize(
    ("base", "head", "steps", "lost"),
    [
        ({"mix on cpu": 1234}, {}, (9, 9), ["mix on cpu ran 1,234 times and does not any more (now: no mix)"]),
        (
            {"mix on cpu": 4},
            {"mixed on cpu": 4, "mix on triton": 4, "mix on cuda": 1},
            (9, 9),
            ["mix on cpu ran 4 times and does not any more (now: mix on triton, mix on cuda)"],
        ),
        # What stands after the first "on" is the backend.
        (
            {"mix on triton on host": 4},
            {"mix on cuda": 4},
            (9, 9),
            ["mix on triton on host ran 4 times and does not any more (now: mix on cuda)"],
        ),
        ({"mix on triton on reference": 4}, {"mix on triton on reference": 9}, (9, 9), []),
        ({"mix on reference": 4}, {}, (9, 9), []),
        ({"mix on cpu": 4}, {"mix on cpu": 3}, (9, 9), []),
        (
            {"mix on reference": 4},
            {"mix on reference": 1005},
            (9, 9),
            ["mix on reference ran 4 times and runs 1,005 times"],
        ),
        (
            {"mix on cpu": 4},
            {"mix on cpu": 4, "mix on reference": 1},
            (9, 9),
            ["mix on reference ran 0 times and runs 1 times"],
        ),
        ({"mixed on cpu": 4}, {"mixed on cpu": 4, "mix on reference": 1}, (9, 9), []),
        # As often in fewer steps, and more often in as many more steps, is no loss; in fewer more steps it is.
        ({"mix on reference": 4}, {"mix on reference": 4}, (9, 8), []),
        ({"mix on reference": 4}, {"mix on reference": 8}, (9, 18), []),
        ({"mix on reference": 4}, {"mix on reference": 8}, (9, 17), ["mix on reference ran 4 times and runs 8 times"]),
        # Steps that are not counted are one.
        ({"mix on reference": 2}, {"mix on reference": 3}, (None, 2), []),
        (
            {"mix on reference": 2},
            {"mix on reference": 5},
            (None, 2),
            ["mix on reference ran 2 times and runs 5 times"],
        ),
        (
            {"mix on reference": 2},
            {"mix on reference": 3},
            (2, None),
            ["mix on reference ran 2 times and runs 3 times"],
        ),
    ],
)
def test_a_kernel_is_lost_where_it_ran_or_where_the_reference_runs_more_in_each_step(
    base: dict[str, int], head: dict[str, int], steps: tuple[int | None, int | None], lost: list[str]
) -> None:
    assert list(_lost_kernels(*(_with_ops(*side) for side in zip((base, head), steps, strict=True)))) == lost


def _with_ops(ops: Mapping[str, int], steps: int | None, deterministic: bool = True) -> GatedRow:
    counters = {} if steps is None else {"target_forwards": steps}
    return GatedRow(counters=counters, ops=ops, digest="d", plain_digest="p", deterministic=deterministic)


def test_where_the_controller_reads_the_clock_only_a_new_call_of_the_reference_is_a_loss() -> None:
    base = _with_ops({"mix on reference": 4, "cut on cpu": 1}, 9, deterministic=False)
    more = _with_ops({"mix on reference": 99, "cut on cpu": 1}, 9, deterministic=False)
    new = _with_ops({"mix on reference": 4, "cut on cpu": 1, "cut on reference": 2}, 9, deterministic=False)
    assert list(_lost_kernels(base, more)) == []
    assert list(_lost_kernels(base, new)) == ["cut on reference ran 0 times and runs 2 times"]


def test_lost_kernels_are_told_in_order_before_anything_else_and_only_on_the_same_machine() -> None:
    base, head = _with_ops({"mix on cpu": 4, "cut on cpu": 1}, 9), replace(_with_ops({}, 9), digest="e")
    message = (
        "cut on cpu ran 1 times and does not any more (now: no cut); "
        "mix on cpu ran 4 times and does not any more (now: no mix)"
    )
    assert compare("row", base, head).record() == _finding("REGRESSED", message, "kernels")
    assert compare("row", base, head, same_machine=False).verdict == GateVerdict.INCONCLUSIVE
    assert compare("row", base, replace(head, digest="d"), same_machine=False).verdict == GateVerdict.PASS
