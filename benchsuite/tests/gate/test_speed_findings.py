"""Levels 1 to 3: what is judged of a row, and whole findings of launches whose figures are chosen by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf, log, log1p
from typing import Any

import pytest

from benchsuite.gate.record import CALL, DECODE, FIRST, PARTS, WHOLE, FigureTimes, GatedRow, Launch, Record
from benchsuite.gate.speed import Side, Subject, Tolerances, cases, decide, percent, shift_of, slower_prompts, staged
from benchsuite.gate.verdict import Finding, GateVerdict

TOLERANCES = Tolerances({"row": 0.03}, first=0.1, coarse=0.15)
OURS = (DECODE, FIRST, WHOLE)
DRAFTED = GatedRow(digest="d", plain_digest="p", control="plain", counters={"num_drafts": 3})
PLAIN = GatedRow(digest="p", plain_digest="p", counters={"target_forwards": 3})
BENCHMARK = GatedRow()


class _Held:
    """Launches that are there already; it remembers how many were asked for."""

    def __init__(self, base: GatedRow, head: GatedRow | None, paired: bool) -> None:
        self.both = Record({}, {"row": base}), Record({}, {} if head is None else {"row": head})
        self.paired, self.asked = paired, list[int]()

    def at_least(self, count: int) -> tuple[Record, Record]:
        """The first launches of both."""
        self.asked.append(count)
        base, head = (
            replace(side, rows={name: replace(row, launches=row.launches[:count]) for name, row in side.rows.items()})
            for side in self.both
        )
        return base, head


def _timed(
    ratios: Sequence[float], figures: Sequence[str] = (DECODE,), seconds: Sequence[float] = (1.0,), launches: int = 5
) -> tuple[Launch, ...]:
    """Equal launches: the ratio to the control and the seconds of each prompt."""
    times = {figure: FigureTimes(tuple(seconds), tuple(map(log, ratios)) or None) for figure in figures}
    return (Launch(times),) * launches


def _found(
    base: GatedRow, head: GatedRow | None, level: int = 2, launches: tuple[int, int] = (5, 0), paired: bool = True
) -> list[Finding]:
    return staged(_Held(base, head, paired), level, TOLERANCES, 0.05, launches)


def _rows(row: GatedRow, base: tuple[Launch, ...], head: tuple[Launch, ...]) -> tuple[GatedRow, GatedRow]:
    return replace(row, launches=base), replace(row, launches=head)


@pytest.mark.parametrize(
    ("row", "ratios", "figures", "level", "expected"),
    [
        *((row, (), (CALL,), 0, []) for row in (DRAFTED, PLAIN, BENCHMARK)),
        *((row, (1.0,), OURS, 0, []) for row in (DRAFTED, PLAIN)),
        (BENCHMARK, (), (CALL,), 1, []),
        (BENCHMARK, (), (CALL,), 2, [Subject("row", CALL, alone=True)]),
        (BENCHMARK, (), (CALL,), 3, [Subject("row", CALL, alone=True)]),
        (DRAFTED, (0.5,), OURS, 1, [Subject("row", figure) for figure in OURS]),
        (DRAFTED, (0.5,), OURS, 2, [Subject("row", figure) for figure in OURS]),
        (DRAFTED, (0.5,), OURS, 3, [Subject("row", figure, alone=True) for figure in OURS]),
        (DRAFTED, (), OURS, 1, []),
        (DRAFTED, (), OURS, 2, []),
        (DRAFTED, (), (FIRST,), 3, [Subject("row", FIRST, alone=True)]),
        (PLAIN, (), OURS, 1, []),
        (PLAIN, (), OURS, 2, [Subject("row", figure, alone=True, coarse=True) for figure in (DECODE, FIRST)]),
        (PLAIN, (), OURS, 3, [Subject("row", figure, alone=True) for figure in OURS]),
        (PLAIN, (2.0,), OURS, 1, [Subject("row", figure) for figure in OURS]),
        (
            PLAIN,
            (2.0,),
            OURS,
            2,
            [
                *(Subject("row", figure) for figure in OURS),
                *(Subject("row", figure, alone=True, coarse=True) for figure in (DECODE, FIRST)),
            ],
        ),
        # A draft whose output is plain's is no plain decoding; one that never ran is.
        (replace(PLAIN, counters={"num_drafts": 1}), (0.5,), (DECODE,), 2, [Subject("row", DECODE)]),
        (
            replace(PLAIN, counters={"num_drafts": 0}),
            (),
            (DECODE,),
            2,
            [Subject("row", DECODE, alone=True, coarse=True)],
        ),
    ],
)
def test_what_a_level_judges_follows_from_what_the_launches_have(
    row: GatedRow, ratios: Sequence[float], figures: Sequence[str], level: int, expected: list[Subject]
) -> None:
    assert cases("row", replace(row, launches=_timed(ratios, figures)), level) == expected


def test_without_launches_nothing_is_judged_at_any_level() -> None:
    assert [cases("row", row, level) for row in (DRAFTED, PLAIN, BENCHMARK) for level in range(4)] == [[]] * 12


def test_a_figure_that_one_launch_lacks_is_not_judged() -> None:
    launches = (*_timed((0.5,), OURS), *_timed((0.5,), (DECODE, WHOLE), launches=1), *_timed((), OURS, launches=1))
    assert cases("row", replace(DRAFTED, launches=launches), 3) == [
        Subject("row", figure, alone=True) for figure in (DECODE, WHOLE)
    ]
    assert cases("row", replace(DRAFTED, launches=launches), 2) == []
    assert cases("row", replace(DRAFTED, launches=launches[:-1]), 2) == [
        Subject("row", figure) for figure in (DECODE, WHOLE)
    ]


SAID = {
    DECODE: "seconds per token",
    FIRST: "seconds to the first token",
    WHOLE: "seconds from prompt to last token",
}


@pytest.mark.parametrize("figure", OURS)
@pytest.mark.parametrize(
    ("ratio", "verdict", "text", "says"),
    [
        (1.2, GateVerdict.REGRESSED, "+20.0%", ", beyond the tolerance of {tolerance:.1%}"),
        (0.8, GateVerdict.IMPROVED, "-20.0%", "; write the gain down with --gate-update"),
        (
            0.2,
            GateVerdict.IMPROVED,
            "-80.0%",
            ", which few repairs do: look whether it still does what it measured"
            "; write the gain down with --gate-update",
        ),
        (1.0, GateVerdict.PASS, "+0.0%", "; a slowdown of {twice:.1%} is excluded"),
    ],
)
def test_a_relative_figure_is_told_over_its_control(
    figure: str, ratio: float, verdict: GateVerdict, text: str, says: str
) -> None:
    base, head = _rows(DRAFTED, _timed((1.0,), (figure,)), _timed((ratio,), (figure,), seconds=(0.9,)))
    tolerance = 0.1 if figure == FIRST else 0.03
    says = says.format(tolerance=tolerance, twice=2 * tolerance)
    message = f"{text} {SAID[figure]}, over plain's ({text} to {text}, each bound at 0.05; 5 and 5 launches){says}"
    (found,) = _found(base, head)
    change: Any = pytest.approx(ratio - 1)
    assert found == Finding("row", 2, verdict, message, figure, change, change, change, None, 5)


def test_bounds_of_few_launches_are_any_and_nothing_is_decided() -> None:
    base, head = _rows(DRAFTED, _timed((1.0,), launches=4), _timed((1.0,), launches=4))
    (found,) = _found(base, head, launches=(4, 0))
    message = (
        "+0.0% seconds per token, over plain's (any to any, each bound at 0.05; 4 and 4 launches): too noisy to "
        "exclude a slowdown of 6.0% or to prove one of 3.0%; more --gate-pairs, more --gate-launches or a quieter "
        "machine decides"
    )
    assert found == Finding("row", 2, GateVerdict.INCONCLUSIVE, message, DECODE, 0.0, -inf, inf, None, 4)


@pytest.mark.parametrize(
    ("row", "figure", "level", "shown", "message"),
    [
        (BENCHMARK, CALL, 2, CALL, "+100.0% seconds a call (+100.0% to +100.0%"),
        (BENCHMARK, CALL, 3, CALL, "+100.0% seconds a call (+100.0% to +100.0%"),
        (DRAFTED, DECODE, 3, DECODE, "+100.0% seconds per token by the clock (+100.0% to +100.0%"),
        (PLAIN, DECODE, 2, f"{DECODE} by the clock", "+100.0% seconds per token by the clock (+100.0% to +100.0%"),
    ],
)
def test_a_figure_without_a_control_is_told_by_the_clock_and_placed_nowhere(
    row: GatedRow, figure: str, level: int, shown: str, message: str
) -> None:
    # The parts of these launches moved, but they are shares of a control's time.
    parts = [{figure: dict.fromkeys(PARTS, share)} for share in (0.2, 0.4)]
    base, head = _rows(row, _timed((), (figure,)), _timed((), (figure,), seconds=(2.0,)))
    base, head = (
        replace(side, launches=tuple(replace(launch, parts=part, tau=1.0) for launch in side.launches))
        for side, part in zip((base, head), parts, strict=True)
    )
    (found,) = _found(base, head, level)
    tolerance = "15.0%" if row is PLAIN else "3.0%"
    message = f"{message}, each bound at 0.05; 5 and 5 launches), beyond the tolerance of {tolerance}"
    once: Any = pytest.approx(1.0)
    assert found == Finding("row", level, GateVerdict.REGRESSED, message, shown, once, once, once, None, 5)


@pytest.mark.parametrize(
    ("noise", "verdict", "says"),
    [
        (0.2, GateVerdict.PASS, "; a slowdown of 30.0% is excluded"),
        (0.4, GateVerdict.COARSE, ": not beyond the tolerance of 15.0%, but one of 30.0% is not excluded"),
    ],
)
def test_plain_by_the_clock_passes_where_its_bounds_exclude_twice_its_tolerance(
    noise: float, verdict: GateVerdict, says: str
) -> None:
    """Bounds of -40 to +66 % were a PASS."""
    noisy = (1.0, 1.0, 1.0, 1 - noise, 1 + noise)
    base, head = _rows(PLAIN, _timed(()), tuple(_timed((), seconds=(one,), launches=1)[0] for one in noisy))
    bounds = f"(-{noise:.1%} to +{noise:.1%}, each bound at 0.05; 5 and 5 launches)"
    message = f"+0.0% seconds per token by the clock {bounds}{says}"
    assert [(one.verdict, one.message) for one in _found(base, head)] == [(verdict, message)]


def test_the_part_of_the_figure_that_moved_most_is_named() -> None:
    def launches(ratio: float, draft: float, kv: float) -> tuple[Launch, ...]:
        parts = {
            DECODE: {**dict.fromkeys(PARTS, 0.0), "draft": draft, "verification": 1.0},
            FIRST: {**dict.fromkeys(PARTS, 0.0), "K/V": kv, "verification": 1.0},
        }
        return tuple(replace(one, parts=parts, tau=2.0) for one in _timed((ratio,), (DECODE, FIRST)))

    base, head = _rows(DRAFTED, launches(1.0, 0.0, 0.0), launches(1.5, 0.5, 2.0))
    # Half a control's token of draft and two of K/V, over the mean of both sides' sums.
    assert [one.where for one in _found(base, head)] == ["draft +40.0 %", "K/V +100.0 %"]


GAIN = "-20.0% seconds per token, over {}'s (-20.0% to -20.0%, each bound at 0.05; 5 and 5 launches)"


@pytest.mark.parametrize(
    ("control", "level", "seconds", "verdict", "says"),
    [
        ("plain", 2, 0.999, GateVerdict.IMPROVED, "; write the gain down with --gate-update"),
        (
            "plain",
            2,
            1.0,
            GateVerdict.PASS,
            "; its own seconds changed by +0.0%: plain got slower, and this row no faster",
        ),
        (
            "transformers",
            2,
            1.5,
            GateVerdict.PASS,
            "; its own seconds changed by +50.0%: transformers got slower, and this row no faster",
        ),
        (
            "plain",
            1,
            0.5,
            GateVerdict.PASS,
            "; plain got slower or this row faster, which this level cannot tell apart: gate against a revision",
        ),
        ("transformers", 1, 1.5, GateVerdict.IMPROVED, "; write the gain down with --gate-update"),
    ],
)
def test_a_gain_over_a_control_is_kept_where_the_rows_own_seconds_fell(
    control: str, level: int, seconds: float, verdict: GateVerdict, says: str
) -> None:
    row = replace(DRAFTED, control=control)
    base, head = _rows(row, _timed((1.0,)), _timed((0.8,), seconds=(seconds,)))
    (found,) = _found(base, head, level)
    assert (found.verdict, found.message) == (verdict, GAIN.format(control) + says)


def test_a_rows_own_seconds_are_compared_pair_by_pair() -> None:
    def launches(ratio: float, seconds: Sequence[float]) -> tuple[Launch, ...]:
        return tuple(_timed((ratio,), seconds=(one,), launches=1)[0] for one in seconds)

    # Four of five pairs halve; all against all, no launch of one side is typically longer than one of the other.
    base, head = _rows(DRAFTED, launches(1.0, (1, 2, 4, 8, 16)), launches(0.8, (1024, 1, 2, 4, 8)))
    assert [one.verdict for one in _found(base, head)] == [GateVerdict.IMPROVED]


@pytest.mark.parametrize(("seconds", "verdict"), [(0.26, GateVerdict.IMPROVED), (0.24, GateVerdict.INCONCLUSIVE)])
def test_a_benchmark_whose_work_is_gone_is_no_gain(seconds: float, verdict: GateVerdict) -> None:
    """A test that did nothing any more was IMPROVED by 100 %, with exit code 0. Rows of ours show their tokens."""
    base, head = _rows(BENCHMARK, _timed((), (CALL,)), _timed((), (CALL,), seconds=(seconds,)))
    (found,) = _found(base, head)
    assert found.verdict == verdict
    assert (": its work may be gone, which few repairs do" in found.message) == (verdict == GateVerdict.INCONCLUSIVE)
    assert [one.verdict for one in _found(*_rows(DRAFTED, _timed((1.0,)), _timed((0.1,), seconds=(0.9,))))] == [
        GateVerdict.IMPROVED
    ]


def test_by_the_clock_alone_a_gain_is_not_doubted() -> None:
    base, head = _rows(BENCHMARK, _timed((), (CALL,)), _timed((), (CALL,), seconds=(0.5,)))
    assert [one.verdict for one in _found(base, head)] == [GateVerdict.IMPROVED]


def test_one_of_many_prompts_is_named_with_its_place_and_bounds_and_waits_for_the_second_stage() -> None:
    slower = tuple(1.6 if place == 18 else 1.0 for place in range(20))
    seconds = (1.0,) * 20
    base, head = _rows(
        DRAFTED, _timed((1.0,) * 20, seconds=seconds, launches=13), _timed(slower, seconds=seconds, launches=13)
    )
    alone = "prompt 19 of 20 alone takes +60.0% seconds per token (+60.0% to +60.0%); over all prompts "
    over = "+2.4% seconds per token, over plain's (+2.4% to +2.4%, each bound at {}; {} and {} launches)"
    tail = "; a slowdown of 6.0% is excluded"
    held = _Held(base, head, paired=True)
    (found,) = staged(held, 2, TOLERANCES, 0.01, (5, 8))
    assert (found.verdict, found.message) == (GateVerdict.REGRESSED, alone + over.format("0.01", 13, 13) + tail)
    assert held.asked == [5, 13]
    # Five launches never show it in twenty prompts.
    (found,) = _found(base, head)
    assert (found.verdict, found.message) == (GateVerdict.INCONCLUSIVE, alone + over.format("0.05", 5, 5) + tail)


def test_one_slower_prompt_undoes_a_gain_and_adds_nothing_to_a_regression() -> None:
    base = _timed((1.0, 1.0), seconds=(1.0, 1.0))
    faster, slower = (_timed(ratios, seconds=(0.1, 0.1)) for ratios in ((0.5, 1.2), (1.0, 1.2)))
    (found,) = _found(*_rows(DRAFTED, base, faster))
    assert found.verdict == GateVerdict.INCONCLUSIVE
    assert found.message.startswith("prompt 2 of 2 alone takes +20.0% seconds per token (+20.0% to +20.0%); over all")
    (found,) = _found(*_rows(DRAFTED, base, slower))
    assert found.verdict == GateVerdict.REGRESSED
    assert found.message.startswith("+9.5% seconds per token, over plain's")


def test_prompts_are_named_for_decoding_over_a_control_alone() -> None:
    other = tuple(1.6 if place == 3 else 1.0 for place in range(20))
    seconds = (1.0,) * 20
    for row, figure, base_times, head_times in (
        (DRAFTED, WHOLE, _timed((1.0,) * 20, (WHOLE,), seconds), _timed(other, (WHOLE,), seconds)),
        (PLAIN, DECODE, _timed((), (DECODE,), seconds), _timed((), (DECODE,), tuple(other))),
    ):
        (found,) = _found(*_rows(row, base_times, head_times))
        assert (found.verdict, found.message[:5], figure) == (GateVerdict.PASS, "+2.4%", figure)


def test_launches_are_compared_in_pairs_where_both_sides_were_live_and_never_at_level_1() -> None:
    """Both sides drift by the same steps: pairs agree to a percent, launches of one side differ by more."""
    drift = (1.0, 1.1, 1.2, 1.3, 1.4)
    base = tuple(_timed((one,), launches=1)[0] for one in drift)
    head = tuple(_timed((one * 1.01,), launches=1)[0] for one in drift)
    rows = _rows(DRAFTED, base, head)
    wide, narrow = GateVerdict.INCONCLUSIVE, GateVerdict.PASS
    assert [
        _found(*rows, level=level, paired=paired)[0].verdict
        for level, paired in ((2, True), (2, False), (1, True), (1, False))
    ] == [narrow, wide, wide, wide]


@pytest.mark.parametrize("head", [None, replace(DRAFTED, launches=_timed((), (DECODE,)))])
def test_a_row_that_a_launch_lacks_is_an_error_of_its_figure(head: GatedRow | None) -> None:
    base = replace(DRAFTED, launches=_timed((1.0,)))
    expected = Finding("row", 2, GateVerdict.ERROR, "its test failed in a launch", DECODE)
    assert _found(base, head) == [expected]
    plain = replace(PLAIN, launches=_timed(()))
    lacking = replace(PLAIN, launches=_timed((), (WHOLE,)))
    assert _found(plain, lacking) == [replace(expected, figure=f"{DECODE} by the clock")]


def test_a_value_of_a_launch_is_the_mean_over_its_prompts() -> None:
    launches: Mapping[str, Sequence[Sequence[float]]] = {
        "base": [[0.0, 2.0], [1.0, 3.0]],
        "head": [[4.0, 2.0], [5.0, 1.0]],
    }
    base, head = (Side(launches[name], ()) for name in ("base", "head"))
    assert (base.values, head.values) == ([1.0, 2.0], [3.0, 3.0])
    assert shift_of(base, head, True, 0.5).estimate == 1.5
    with pytest.raises(ValueError, match="zip"):
        shift_of(base, Side(launches["head"][:1], ()), True, 0.5)
    assert shift_of(base, Side(launches["head"][:1], ()), False, 0.5).estimate == 1.5


def test_a_change_is_a_signed_percentage_and_an_infinite_one_any() -> None:
    assert [percent(bound) for bound in (0.0, 0.0604, -0.5, inf, -inf)] == ["+0.0%", "+6.0%", "-50.0%", "any", "any"]


def _pairs(case: Subject, differences: Sequence[float]) -> dict[Subject, tuple[Side, Side]]:
    return {case: (Side([[0.0]] * len(differences), ()), Side([[one] for one in differences], ()))}


@pytest.mark.parametrize(
    ("differences", "coarse", "stages"),
    [
        ([log1p(0.03)] * 5, False, ("PASS", "PASS")),
        ([log1p(0.15)] * 5, True, ("PASS", "PASS")),
        ([-log1p(0.03)] * 5, False, ("PASS", "PASS")),
        ([-log1p(0.04)] * 5, False, ("INCONCLUSIVE", "IMPROVED")),
        ([-log1p(0.16)] * 5, True, ("PASS", "PASS")),
        ([0.0, 0.0, 0.0, 0.0, 2 * log1p(0.03)], False, ("INCONCLUSIVE", "INCONCLUSIVE")),
        ([0.0, 0.0, 0.0, 0.0, 2 * log1p(0.029)], False, ("PASS", "PASS")),
        ([0.0, 0.0, 0.0, 0.0, 2 * log1p(0.15)], True, ("COARSE", "COARSE")),
        ([0.0, 0.0, 0.0, 0.0, 2 * log1p(0.149)], True, ("PASS", "PASS")),
        ([log1p(0.031)] * 5, False, ("INCONCLUSIVE", "REGRESSED")),
        ([log1p(0.151)] * 5, True, ("INCONCLUSIVE", "REGRESSED")),
    ],
)
def test_an_estimate_at_the_tolerance_passes_and_a_bound_at_twice_the_tolerance_does_not(
    differences: Sequence[float], coarse: bool, stages: tuple[str, str]
) -> None:
    case = Subject("row", DECODE, alone=coarse, coarse=coarse)
    found = [decide(_pairs(case, differences), TOLERANCES, 0.05, final, live=True)[case] for final in (False, True)]
    assert tuple(verdict for verdict, _ in found) == stages


def test_a_prompt_is_named_above_five_tolerances_and_bounded_at_the_level_of_its_stage() -> None:
    case = Subject("row", DECODE)
    at, above = (_pairs(case, [log1p(5 * 0.03) + more] * 5) for more in (0.0, 1e-6))
    assert slower_prompts(at, TOLERANCES, 0.01, final=True, live=True) == {}
    # Five pairs bound nothing at one in a hundred.
    first, last = (slower_prompts(above, TOLERANCES, 0.01, final, live=True)[case] for final in (False, True))
    assert (first[0], first[1], first[2].high < 0.2) == (GateVerdict.INCONCLUSIVE, 0, True)
    assert (last[0], last[1], last[2].low, last[2].high) == (GateVerdict.INCONCLUSIVE, 0, -inf, inf)


def test_sides_of_other_numbers_of_prompts_are_not_compared_prompt_by_prompt() -> None:
    case = Subject("row", DECODE)
    uneven = {case: (Side([[0.0]] * 5, ()), Side([[1.0, 1.0]] * 5, ()))}
    assert slower_prompts(uneven, TOLERANCES, 0.05, final=True, live=True) == {}
