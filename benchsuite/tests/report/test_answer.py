"""The sentence on top of a report: what it recommends, over what, and why it recommends nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp, log
from statistics import fmean
from typing import Any

import pytest

from benchsuite.measure.arms import Arm, Setting
from benchsuite.measure.interval import estimate
from benchsuite.measure.results import Results, SettingResults
from benchsuite.measure.rows import Row
from benchsuite.report.answer import answers, usable
from benchsuite.tests.report.made import (
    NGRAM,
    PEER,
    PLAIN,
    everywhere,
    made_cell,
    made_row,
    run_of_cells,
)
from benchsuite.tests.rig import SETTING

BEST, SECOND = NGRAM, Arm(SETTING, "tree", k=8, name="trees")


def sentence_of(pooled: Sequence[Row], rows: Sequence[Row] = (), setting: Setting = SETTING, **given: Any) -> str:
    """The answer of a run of one setting."""
    [found] = answers(Results((SettingResults(setting.without_workload, (), tuple(rows), tuple(pooled)),), **given))
    return found


def faster(arm: Arm, speedup: float, half: float | None = 0.1, workloads: int = 1, **given: Any) -> Row:
    """A row over so many workloads of two prompts each."""
    ratios = {f"kind {n}": [speedup] * 2 for n in range(workloads)}
    return made_row(everywhere(arm), speedup, half, ratios=ratios, **given)


BASE = made_row(everywhere(PLAIN), 1.0, 0.0)


@pytest.mark.parametrize(("contract", "promise"), [("exact", "lossless"), ("distribution", "of the target's own")])
def test_the_fastest_strategy_is_named_with_its_speedup_its_interval_and_its_promise(
    contract: str, promise: str
) -> None:
    pooled = [BASE, faster(SECOND, 1.25), faster(BEST, 1.5, contract=contract, baseline="ours"), faster(PEER, 9.0)]
    found = sentence_of(pooled)
    assert found.startswith(
        "On this machine use ngram, match 4: 1.50x (1.36 to 1.65) as fast as ours over one workload, "
        f"1.50x (1.36 to 1.65) from prompt to last token, {promise}"
    )
    assert "workload that suits it least" not in found


def test_over_several_workloads_the_least_of_its_speedups_is_told_too() -> None:
    """Of the strategy's own rows with a speedup; one workload alone would only say the same again."""
    own = [1.75, 1.125, 1.375]
    rows = [
        *(made_row(replace(BEST, setting=SETTING.replaced(workload=f"kind {n}")), x) for n, x in enumerate(own)),
        made_row(SECOND, 0.5),
        made_row(replace(BEST, setting=SETTING.replaced(workload="kind 9"))),
    ]
    whole = "1.50x (1.36 to 1.65) from prompt to last token, lossless."
    said = f"over 3 workloads, 1.12x on the workload that suits it least, {whole}"
    assert sentence_of([BASE, faster(BEST, 1.5, workloads=3)], rows).endswith(said)
    assert sentence_of([BASE, faster(BEST, 1.5, workloads=3)], rows[:1]).endswith(f"over 3 workloads, {whole}")
    assert sentence_of([BASE, faster(BEST, 1.5, workloads=3)], rows[:2]).endswith(said)


def test_the_workload_that_suits_it_least_is_looked_for_within_its_own_setting() -> None:
    """Twice as fast or more on both workloads at batch 1, and slower than plain on one of them at batch 4: that one is
    no workload of batch 1."""
    speeds = {(1, "chat"): 2.5, (1, "code"): 2.0, (4, "chat"): 0.5, (4, "code"): 9.0}
    cells = [
        made_cell(SETTING.replaced(batch=batch, workload=workload), {PLAIN: [1.0] * 6, BEST: seconds_of_six(speedup)})
        for (batch, workload), speedup in speeds.items()
    ]
    one, four = answers(run_of_cells(*cells).results())
    least = [f"{exp(log(speed) + fmean(SPREAD)):.2f}x on the workload that suits it least" for speed in (2.0, 0.5)]
    assert "batch 1" in one
    assert least[0] in one
    assert "batch 4" in four
    assert "suits it least" not in one.replace(least[0], "")
    assert least[1] not in one


def test_each_setting_has_an_answer_that_says_which_it_is_of() -> None:
    settings = [SETTING.replaced(batch=batch).without_workload for batch in (1, 4)]
    both = tuple(
        SettingResults(
            one,
            (),
            (),
            (made_row(Arm(one), 1.0, 0.0), made_row(Arm(one, "ngram", k=one.batch), 1.0 + one.batch, 0.01)),
        )
        for one in settings
    )
    assert [answer.partition(": ")[0] for answer in answers(Results(both))] == [
        f"With tiny, cpu, float32, batch {batch}, 24 tokens use ngram, match {batch}" for batch in (1, 4)
    ]
    assert answers(Results()) == []


def test_a_dry_run_recommends_nothing() -> None:
    assert sentence_of([BASE, faster(BEST, 1.5)], dry=True).startswith("This was a dry run")


def test_plain_decoding_alone_is_no_ground_for_a_recommendation() -> None:
    assert sentence_of([BASE, faster(PEER, 2.0)]).endswith(
        "nothing can be recommended: no strategy that drafts was measured."
    )


@pytest.mark.parametrize(
    ("ratios", "few"),
    [
        ({"chat": [1.5]}, "one prompt over one workload is"),
        ({"chat": [1.5] * 3}, "3 prompts over one workload are"),
        ({"chat": [1.5], "code": [1.5] * 3}, "4 prompts over 2 workloads are"),
    ],
)
def test_too_few_prompts_for_an_interval_are_counted_and_more_are_asked_for(
    ratios: dict[str, list[float]], few: str
) -> None:
    row = made_row(everywhere(BEST), 1.5, ratios=ratios)
    assert sentence_of([BASE, row]) == (
        f"On this machine no strategy can be recommended yet: {few} too few for an interval; measure more."
    )


def test_where_nothing_is_measurably_faster_plain_decoding_is_to_be_used() -> None:
    for slow in (faster(BEST, 1.05), faster(BEST, 0.5, 0.01)):
        assert sentence_of([BASE, slow]) == (
            "On this machine use plain decoding: no strategy was measurably faster over one workload."
        )


@pytest.mark.parametrize(
    ("unfit", "reason"),
    [
        (faster(BEST, 1.5, failure="differs"), "broke its contract"),
        (faster(BEST, 1.5, failure="differs", failed="contract"), "broke its contract"),
        (faster(BEST, 1.5, failure="died", failed="timeout"), "could not be measured"),
        (faster(BEST, 1.5, marks=("learns", "replays")), "replayed plain's own output"),
        (faster(BEST, 1.5, contract="lossy"), "promised no contract that keeps the target's outputs"),
        (faster(BEST, 1.5, contract="own"), "promised no contract that keeps the target's outputs"),
        (made_row(everywhere(BEST)), "could not be compared with plain"),
        (faster(BEST, 1.5, reason="loops"), "could not be compared with plain"),
    ],
)
def test_what_cannot_be_recommended_is_counted_by_its_reason(unfit: Row, reason: str) -> None:
    """And is never the answer, however fast it seems."""
    assert not usable(unfit)
    twice = [BASE, unfit, faster(SECOND, 1.5, marks=("replays",)), replace(unfit, arm=replace(unfit.arm, k=9))]
    found = sentence_of(twice)
    if "replayed" in reason:
        assert "nothing can be recommended: 3 replayed plain's own output, over one workload." in found
    else:
        assert f"nothing can be recommended: 2 {reason}, 1 replayed plain's own output, over one workload." in found
    assert "use trees: 1.20x" in sentence_of([BASE, unfit, faster(SECOND, 1.2, 0.01)])


def test_only_a_strategy_that_drafts_can_be_recommended() -> None:
    assert usable(faster(BEST, 1.5))
    assert usable(faster(BEST, 1.5, contract="distribution", marks=("learns",)))
    assert not usable(faster(PEER, 1.5))
    assert not usable(BASE)


SPREAD = (-0.05, 0.04, -0.03, 0.05, -0.02, 0.01)


def seconds_of_six(speedup: float, noise: float = 0.0) -> list[float]:
    """The seconds of six prompts, of which plain takes one each."""
    return [1 / (speedup * exp(x + noise * (-1) ** n)) for n, x in enumerate(SPREAD)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "said"),
    [
        ((), ""),
        (("a",), "; not distinguishable from a, match 1"),
        (("a", "b"), "; not distinguishable from a, match 1, b, match 1"),
        (("a", "b", "c"), "; not distinguishable from a, match 1, b, match 1 and 1 more"),
        (("a", "b", "c", "d"), "; not distinguishable from a, match 1, b, match 1 and 2 more"),
    ],
)
def test_strategies_that_may_be_as_fast_as_the_best_are_named(names: Sequence[str], said: str) -> None:
    """Slower by 1 % in the mean and by more or less prompt by prompt; one that is slower in every prompt is not one."""
    arms = {
        PLAIN: [1.0] * 6,
        BEST: seconds_of_six(2.0),
        Arm(SETTING, "slow", k=1): [1.1 * x for x in seconds_of_six(2.0)],
    }
    arms |= {Arm(SETTING, name, k=1): seconds_of_six(1.98, 0.05) for name in names}
    [found] = answers(run_of_cells(made_cell(SETTING, arms)).results())
    over = estimate({"chat": [log(2.0) + x for x in SPREAD]})
    decoding = f"{over.ratio:.2f}x ({over.low:.2f} to {over.high:.2f})"
    assert found.startswith(f"On this machine use ngram, match 4: {decoding} as fast as plain over one workload, ")
    assert found.endswith(f" from prompt to last token, lossless over 60 tokens{said}."), "ten of each of six prompts"


def test_a_draft_that_decodes_the_answer_in_its_prefill_is_not_recommended() -> None:
    """6.01 times as fast while decoding and 0.94 times from prompt to last token, as a draft was that decoded the
    answer with the target in ``admit``: an honest one is recommended beside it, and plain decoding without one."""
    cheat = faster(SECOND, 6.01, e2e_speedup=0.94)
    assert "use ngram, match 4: 1.50x" in sentence_of([BASE, cheat, faster(BEST, 1.5, e2e_speedup=1.25)])
    assert sentence_of([BASE, cheat]) == (
        "On this machine use plain decoding: no strategy was measurably faster from prompt to last token (trees: 0.94x "
        "(0.85 to 1.03), 6.01x (5.46 to 6.61) without its prefill) over one workload."
    )


def test_beside_a_baseline_whose_prompts_were_cached_nothing_is_recommended() -> None:
    """Its time from prompt to last token is no measure of theirs."""
    found = sentence_of([BASE, faster(BEST, 1.5, e2e_speedup=None)])
    assert found == (
        "On this machine nothing can be recommended: 1 could not be compared with the baseline from prompt to last "
        "token, over one workload."
    )


def test_of_two_strategies_that_is_recommended_which_is_faster_from_prompt_to_last_token() -> None:
    """A draft that decodes a part of the answer in its prefill."""
    half = faster(SECOND, 3.0, 0.01, e2e_speedup=1.1)
    found = sentence_of([BASE, half, faster(BEST, 1.5, e2e_speedup=1.25)])
    assert "use ngram, match 4: 1.50x (1.36 to 1.65) as fast as plain over one workload, 1.25x (1.14 to 1.38) " in found


@pytest.mark.parametrize(("count", "said"), [(None, "lossless."), (1536, "lossless over 1,536 tokens.")])
def test_a_promise_says_over_how_many_tokens_it_was_kept(count: int | None, said: str) -> None:
    counters = None if count is None else {"num_emitted_tokens": count}
    assert sentence_of([BASE, faster(BEST, 1.5, counters=counters)]).endswith(said)


def test_a_strategy_that_learns_is_said_to_and_from_how_many_prompts() -> None:
    """Of two workloads with two and five prompts it forgets the first before the second."""
    ratios = {"chat": [1.5] * 2, "code": [1.5] * 5}
    row = made_row(everywhere(BEST), 1.5, 0.1, ratios=ratios, marks=("learns",))
    said = "lossless; it learns from ended requests, here from up to 4 before the one that was timed."
    assert sentence_of([BASE, row]).endswith(said)


def test_a_strategy_that_is_not_faster_than_plain_for_sure_may_still_be_as_fast_as_the_best() -> None:
    """Its speedup of 1.9 has an interval that holds 1: its prompts are between 0.3 and 12 times as fast."""
    arms = {PLAIN: [1.0] * 6, BEST: seconds_of_six(2.0), SECOND: seconds_of_six(1.9, 1.8)}
    [found] = answers(run_of_cells(made_cell(SETTING, arms)).results())
    assert found.startswith("On this machine use ngram, match 4: ")
    assert found.endswith("; not distinguishable from trees.")


def test_a_strategy_that_is_faster_where_both_ran_is_named_though_its_figure_is_smaller() -> None:
    """On chat it is the faster one; the other was also run on code, where all are faster."""
    other = SETTING.replaced(workload="code")
    slow, fast = [1.5 * x for x in seconds_of_six(2.0)], seconds_of_six(2.0)
    cells = [
        made_cell(SETTING, {PLAIN: [1.0] * 6, BEST: slow, SECOND: fast}),
        made_cell(other, {PLAIN: [1.0] * 6, BEST: seconds_of_six(9.0)}),
    ]
    [found] = answers(run_of_cells(*cells).results())
    assert found.startswith("On this machine use ngram, match 4: 3.4")
    assert found.endswith("; not distinguishable from trees.")


def test_a_difference_within_the_noise_of_plain_against_itself_distinguishes_nothing() -> None:
    """A second strategy is 10 % slower in every prompt, and plain differs from itself by 15 %."""
    arms = {
        PLAIN: [1.0] * 6,
        BEST: seconds_of_six(2.0),
        Arm(SETTING, "slow", k=1): [1.1 * x for x in seconds_of_six(2.0)],
    }
    again = {replace(PLAIN, again=True): [1.15 * exp(x / 10) for x in SPREAD]}
    [quiet] = answers(run_of_cells(made_cell(SETTING, arms)).results())
    [loud] = answers(run_of_cells(made_cell(SETTING, arms | again)).results())
    assert "not distinguishable" not in quiet
    assert loud.endswith("lossless over 60 tokens; not distinguishable from slow, match 1.")
