"""The gate's verdicts follow docs/gate.md: each sentence as cases at its edge, and all of them by a twin."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from math import log1p
from statistics import median

import pytest

from benchsuite.gate.record import CALL, DECODE, FIRST, WHOLE, FigureTimes, GatedRow, Launch, Record
from benchsuite.gate.speed import PROMPT, Side, Subject, Tolerances, decide, slower_prompts, staged
from benchsuite.gate.verdict import GateVerdict, worst

TOLERANCE, ALPHA = 0.03, 0.01
AT, TWICE = log1p(TOLERANCE), 2 * log1p(TOLERANCE)
PASS, REGRESSED, IMPROVED, INCONCLUSIVE = (
    GateVerdict.PASS,
    GateVerdict.REGRESSED,
    GateVerdict.IMPROVED,
    GateVerdict.INCONCLUSIVE,
)
ROW = Subject("row", DECODE)
LIMITS = Tolerances({"row": TOLERANCE}, first=0.1, coarse=0.15)
NEAR = 1e-6
NONE = Launch({})


def pairs(differences: Sequence[float]) -> tuple[Side, Side]:
    """Base and head of one prompt, whose launches differ by these logarithms."""
    return Side([[1.0]] * len(differences), [NONE]), Side([[1.0 + d] for d in differences], [NONE])


def spaced(middle: float, count: int, width: float = 1e-4) -> list[float]:
    """Distinct values around a middle, which is their Hodges-Lehmann estimate."""
    return [middle + width * (i - (count - 1) / 2) for i in range(count)]


def decided(differences: Sequence[float], final: bool, case: Subject = ROW) -> GateVerdict:
    return decide({case: pairs(differences)}, LIMITS, ALPHA, final, live=True)[case][0]


@pytest.mark.parametrize(
    ("rule", "differences", "final", "expected"),
    [
        ("the tolerance itself is not beyond it", spaced(AT - NEAR, 7), True, PASS),
        ("what is beyond the tolerance and surely slower is REGRESSED", spaced(AT + NEAR, 7), True, REGRESSED),
        ("only the second stage accuses", spaced(AT + NEAR, 7), False, INCONCLUSIVE),
        ("six launches have p = 1/64, which is no 1 %", spaced(AT + NEAR, 6), True, INCONCLUSIVE),
        ("six launches exclude at 1/32: the first stage passes", spaced(0.0, 6), False, PASS),
        ("six launches exclude nothing at 1 %: the last stage does not pass", spaced(0.0, 6), True, INCONCLUSIVE),
        ("five launches exclude at 1/32", spaced(0.0, 5), False, PASS),
        ("four launches exclude nothing at 1/32", spaced(0.0, 4), False, INCONCLUSIVE),
        ("seven launches exclude at 1 %", spaced(0.0, 7), True, PASS),
        ("one launch of seven at twice the tolerance", [*spaced(0.0, 6), TWICE + NEAR], True, INCONCLUSIVE),
        ("one launch of seven just below it", [*spaced(0.0, 6), TWICE - NEAR], True, PASS),
        ("one launch of five at twice the tolerance", [*spaced(0.0, 4), TWICE + NEAR], False, INCONCLUSIVE),
        ("one launch of five just below it", [*spaced(0.0, 4), TWICE - NEAR], False, PASS),
        ("a gain beyond the tolerance, surely", spaced(-AT - NEAR, 7), True, IMPROVED),
        ("a gain of the tolerance itself is none", spaced(-AT + NEAR, 7), True, PASS),
        ("a gain that is not sure is none", [*spaced(-AT - NEAR, 6), 2 * AT / 3], True, PASS),
        ("a gain leads to the second stage", spaced(-AT - NEAR, 7), False, INCONCLUSIVE),
        ("a gain within the tolerance does not", spaced(-AT + NEAR, 7), False, PASS),
        ("beyond the tolerance, and one launch is faster", [*spaced(TWICE, 6), -1.0], True, INCONCLUSIVE),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) and " " in value else "",
)
def test_a_sentence_of_the_rules_holds_at_its_edge(
    rule: str, differences: list[float], final: bool, expected: GateVerdict
) -> None:
    assert decided(differences, final) == expected, rule


@pytest.mark.parametrize(
    ("case", "limit"),
    [
        (ROW, 0.03),
        (Subject("row", WHOLE), 0.03),
        (Subject("row", CALL, alone=True), 0.03),
        (Subject("row", FIRST), 0.1),
        (Subject("row", DECODE, alone=True, coarse=True), 0.15),
        (Subject("row", FIRST, alone=True, coarse=True), 0.15),
    ],
    ids=lambda value: value.figure_name if isinstance(value, Subject) else "",
)
def test_each_figure_has_its_tolerance_and_a_row_of_a_larger_one_its_own(case: Subject, limit: float) -> None:
    assert decided(spaced(log1p(limit) - NEAR, 8, 1e-8), True, case) == PASS
    assert decided(spaced(log1p(limit) + NEAR, 8, 1e-8), True, case) == REGRESSED
    assert replace(LIMITS, rows={"row": 0.5}).of(case) == 0.5


def chance(values: Sequence[float]) -> float:
    """The share of sign patterns with as many Walsh averages above 0: of "no larger", by counting."""

    def above(signed: Sequence[float]) -> int:
        return sum(a + b > 0 for a, b in itertools.combinations_with_replacement(signed, 2))

    patterns = itertools.product((1, -1), repeat=len(values))
    seen = above(values)
    counts = [above([s * v for s, v in zip(signs, values, strict=True)]) for signs in patterns]
    return sum(count >= seen for count in counts) / len(counts)


def due(differences: Sequence[float], final: bool, level: float) -> GateVerdict:
    """docs/gate.md in ten lines, with ``level`` for bounds and tests."""
    walsh = [(a + b) / 2 for a, b in itertools.combinations_with_replacement(differences, 2)]
    estimate = median(walsh)
    excluded = chance([TWICE - d for d in differences]) <= level
    if final and estimate > AT and chance(differences) <= level:
        return REGRESSED
    if final and estimate < -AT and chance([-d for d in differences]) <= level:
        return IMPROVED
    fine = estimate <= AT and (final or estimate >= -AT)
    return PASS if fine and excluded else INCONCLUSIVE


@pytest.mark.slow
def test_every_verdict_is_the_documented_one() -> None:
    """Of 400 drawn cases; each verdict occurs, and in some the other stage's level would give another one."""
    dice = random.Random(1)
    seen: dict[tuple[bool, GateVerdict], int] = {}
    levels_matter = {True: 0, False: 0}
    for _ in range(400):
        middle, width = dice.choice((-2, -1.2, -0.8, 0, 0.7, 1.3, 2)) * AT, dice.choice((0.3, 1.0)) * AT
        differences = [dice.gauss(middle, width) for _ in range(dice.choice((5, 6, 7, 8)))]
        final = dice.random() < 0.6
        own, other = (ALPHA, 1 / 32) if final else (1 / 32, ALPHA)
        expected = due(differences, final, own)
        assert decided(differences, final) == expected, differences
        seen[final, expected] = seen.get((final, expected), 0) + 1
        levels_matter[final] += expected != due(differences, final, other)
    assert min(levels_matter.values()) >= 10, levels_matter
    assert seen.keys() == {(True, one) for one in (PASS, REGRESSED, IMPROVED, INCONCLUSIVE)} | {
        (False, PASS),
        (False, INCONCLUSIVE),
    }
    assert min(seen.values()) >= 5, seen


def of_prompts(*slower: float, count: int) -> dict[Subject, tuple[Side, Side]]:
    """A case of as many prompts as values, each slower by its value in every launch, but for tiny differences."""
    base, head = (Side([[scale * d + 1e-5 * i for d in slower] for i in range(count)], [NONE]) for scale in (0.0, 1.0))
    return {ROW: (base, replace(head, prompts=[[v + 1e-6 * i for v in p] for i, p in enumerate(head.prompts)]))}


BEYOND = log1p(PROMPT * TOLERANCE)


@pytest.mark.parametrize(
    ("slower", "count", "final", "expected"),
    [
        ((0.0, BEYOND + NEAR), 8, True, (REGRESSED, 1)),
        ((0.0, BEYOND - 1e-4), 8, True, None),  # five tolerances are let through
        ((0.0, BEYOND + NEAR), 8, False, (INCONCLUSIVE, 1)),  # only the second stage accuses
        ((0.0, BEYOND + NEAR), 7, True, (INCONCLUSIVE, 1)),  # 1/128 is not half of 1 %: Holm over two prompts
        ((BEYOND + NEAR,), 7, True, (REGRESSED, 0)),
        ((BEYOND + 0.1, 0.0, BEYOND + 0.2, BEYOND + 0.05), 13, True, (REGRESSED, 2)),  # the one that lost most
        ((-BEYOND - 0.1, 0.0), 8, True, None),  # a prompt that gained is not named
    ],
)
def test_one_prompt_is_named_beyond_five_tolerances_where_the_exact_test_agrees(
    slower: tuple[float, ...], count: int, final: bool, expected: tuple[GateVerdict, int] | None
) -> None:
    found = slower_prompts(of_prompts(*slower, count=count), LIMITS, ALPHA, final, live=True)
    assert (found[ROW][:2] if found else None) == expected


class Asked:
    """Sides whose launches are known, and which note how many were asked for."""

    paired = True

    def __init__(self, differences: Sequence[float]) -> None:
        self.differences, self.counts = differences, list[int]()

    def at_least(self, count: int) -> tuple[Record, Record]:
        """The first ``count`` launches of both."""
        self.counts.append(count)
        chosen = self.differences[:count]
        return self._record([0.0] * len(chosen)), self._record(chosen)

    def _record(self, logs: Sequence[float]) -> Record:
        launches = [Launch({DECODE: FigureTimes((1.0,), (value,))}) for value in logs]
        return Record({}, {"row": GatedRow(control="plain", digest="d", launches=tuple(launches))})


@pytest.mark.parametrize(
    ("differences", "launches", "asked", "expected"),
    [
        (spaced(0.0, 13), (5, 8), [5], PASS),  # the first stage decides
        (spaced(TWICE, 13), (5, 8), [5, 13], REGRESSED),
        ([*spaced(0.0, 4), 0.1, *spaced(0.0, 8)], (5, 8), [5, 13], PASS),
        (spaced(0.0, 6), (5, 1), [5], PASS),
        ([*spaced(0.0, 5), 0.2], (6, 0), [6], INCONCLUSIVE),  # a single stage is the last one
        (spaced(0.0, 6), (6, 0), [6], INCONCLUSIVE),  # at the last stage's level
        (spaced(TWICE, 7), (7, 0), [7], REGRESSED),
    ],
)
def test_the_second_stage_runs_where_the_first_decides_nothing_and_judges_at_its_own_level(
    differences: list[float], launches: tuple[int, int], asked: list[int], expected: GateVerdict
) -> None:
    sides = Asked(differences)
    [found] = staged(sides, 2, LIMITS, ALPHA, launches)
    assert (sides.counts, found.verdict) == (asked, expected)
    final = asked[-1] == sum(launches)
    assert f"each bound at {ALPHA if final else 1 / 32:.2g}" in found.message


def test_a_run_is_as_bad_as_its_worst_row() -> None:
    order = [IMPROVED, PASS, INCONCLUSIVE, REGRESSED, GateVerdict.ERROR]
    for several in itertools.product(order, repeat=2):
        assert worst(several) == order[max(map(order.index, several))]
    assert worst([]) == PASS
