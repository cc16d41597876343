"""What a regression could hide behind: each attack passed, or read as a gain, before the rule that it tests."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import cycle, pairwise
from math import exp, log
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from tokenizers import normalizers
from torch import nn

from benchsuite.gate import counters, inputs
from benchsuite.gate.launcher import Launcher
from benchsuite.gate.record import CALL, DECODE, FIRST, PARTS, WHOLE, FigureTimes, GatedRow, GateError, Launch, Record
from benchsuite.gate.sides import LiveSides
from benchsuite.gate.trial import BLIND, refuse_unfit_anchor
from benchsuite.gate.verdict import GateVerdict
from benchsuite.measure.workloads import Question
from benchsuite.tests.launched_rig import (
    DRAFTED,
    PLAIN,
    drafted,
    gated_rows,
    judged,
    launches_of,
    slowed,
    timed_outcome,
    trial,
)
from specdec.catalog import byte_tokenizer


def test_the_value_of_a_launch_is_a_mean_over_prompts_of_medians_over_passes() -> None:
    found = (
        gated_rows([timed_outcome(0.5), timed_outcome(0.5), timed_outcome(1.5)], [timed_outcome()] * 3)[DRAFTED.id]
        .launches[0]
        .times[DECODE]
    )
    assert found.relative == pytest.approx((log(0.5), log(0.5), log(1.5)))
    assert found.seconds == pytest.approx((0.05, 0.05, 0.15))


@pytest.mark.parametrize("slower", [2.0, 1.2])
def test_one_prompt_of_three_that_got_slower_is_a_regression(slower: float) -> None:
    """A median over all pairs saw two prompts of three, and said PASS."""
    found = judged(launches_of(drafted([0.5] * 3), 0), launches_of(drafted([0.5, 0.5, 0.5 * slower]), 1))
    assert found["ngram", DECODE].verdict == GateVerdict.REGRESSED
    assert found["ngram", DECODE].change == pytest.approx(slower ** (1 / 3) - 1, abs=0.005)
    assert found["plain", f"{DECODE} by the clock"].verdict == GateVerdict.PASS


@pytest.mark.slow
def test_one_prompt_of_twenty_is_named_although_the_mean_is_within_the_tolerance() -> None:
    many = [0.5] * 20
    found = judged(launches_of(drafted(many), 0), launches_of(drafted([*many[:6], 0.8, *many[7:]]), 1))["ngram", DECODE]
    assert found.verdict == GateVerdict.REGRESSED
    assert "prompt 7 of 20 alone takes +60." in found.message
    assert found.change == pytest.approx(1.6 ** (1 / 20) - 1, abs=0.004), "and that is below 0.03"


@pytest.mark.slow
def test_prompts_that_differ_by_noise_alone_are_not_named() -> None:
    def noisy(seed: int) -> Record:
        coin = random.Random(seed)
        return launches_of(lambda _: drafted([0.5 * exp(coin.gauss(0, 0.05)) for _ in range(18)])(1.0), seed)

    assert all(judged(noisy(i), noisy(i + 100))["ngram", DECODE].verdict == GateVerdict.PASS for i in range(8))


def test_a_slowdown_of_everything_by_an_amount_is_no_gain_and_blocks() -> None:
    """Half a second on every forward: plain takes 1.5 for 1, a draft with a third of the forwards 0.67 for 0.5."""
    found = judged(launches_of(slowed(1.0, 0.5), 0), launches_of(slowed(1.5, 0.67), 1))
    assert found["plain", f"{DECODE} by the clock"].verdict == GateVerdict.REGRESSED
    assert "by the clock" in found["plain", f"{DECODE} by the clock"].message
    assert found["ngram", DECODE].change == pytest.approx(-0.107, abs=0.01)
    assert found["ngram", DECODE].verdict == GateVerdict.PASS
    assert "plain got slower, and this row no faster" in found["ngram", DECODE].message


def test_a_gain_is_one_where_the_rows_own_seconds_fell() -> None:
    found = judged(launches_of(slowed(1.0, 0.5), 0), launches_of(slowed(1.0, 0.45), 1))
    assert found["ngram", DECODE].verdict == GateVerdict.IMPROVED


def test_against_a_file_a_slowdown_of_everything_is_no_gain_and_the_run_says_what_it_cannot_see() -> None:
    base, head = launches_of(slowed(1.0, 0.5), 0), launches_of(slowed(1.5, 0.67), 1)
    found = judged(base, head, level=1)
    assert ("plain", DECODE) not in found
    assert found["ngram", DECODE].verdict == GateVerdict.PASS
    assert "which this level cannot tell apart" in found["ngram", DECODE].message
    notes = [one.message for one in trial(base, head).findings() if one.row == "suite"]
    assert BLIND in notes


def test_a_control_that_the_engine_does_not_share_sees_a_slowdown_of_everything_by_a_factor() -> None:
    base, head = launches_of(slowed(1.0, 0.5, peer=True), 0), launches_of(slowed(1.1, 0.55, peer=True), 1)
    found = judged(base, head, level=1)
    assert found["plain", DECODE].verdict == GateVerdict.REGRESSED
    assert found["ngram", DECODE].verdict == GateVerdict.PASS
    assert {row.control for row in base.rows.values() if not row.peer} == {"transformers", "plain"}
    assert BLIND not in [one.message for one in trial(base, head).findings()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("slower", "figure", "place"),
    [
        ({"prefill": 0.5}, FIRST, "prefill"),
        ({"admit": 0.3}, FIRST, "draft"),
        ({"forget": 0.3}, FIRST, "draft"),
        ({"observe": 0.1}, DECODE, "draft"),
    ],
)
def test_work_outside_decoding_is_gated_and_placed(slower: dict[str, float], figure: str, place: str) -> None:
    """What a draft does when a request begins is in no token's time, and was in no verdict."""
    found = judged(launches_of(drafted([0.5] * 3), 0), launches_of(drafted([0.5] * 3, **slower), 1))
    assert found["ngram", figure].verdict == GateVerdict.REGRESSED
    assert (found["ngram", figure].where or "").startswith(place)
    assert found["ngram", WHOLE].verdict == GateVerdict.REGRESSED
    if figure == FIRST:
        assert found["ngram", DECODE].verdict == GateVerdict.PASS


OPS = {"linear on cpu": 40, "silu_mul on reference": 4}
COUNTED = GatedRow(digest="d", plain_digest="p", counters={"target_forwards": 4}, ops=OPS)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ({"linear on reference": 40, "silu_mul on reference": 4}, "linear on cpu ran 40 times and does not any more"),
        ({**OPS, "linear on reference": 1}, "linear on reference ran 0 times and runs 1 times"),
        ({**OPS, "silu_mul on reference": 5}, "silu_mul on reference ran 4 times and runs 5 times"),
    ],
)
def test_kernels_that_are_gone_are_a_regression_whatever_the_tokens(head: dict[str, int], message: str) -> None:
    for digest in ("d", "another"):
        found = counters.compare("row", COUNTED, replace(COUNTED, ops=head, digest=digest))
        assert (found.verdict, found.where) == (GateVerdict.REGRESSED, "kernels")
        assert message in found.message
    assert counters.compare("row", COUNTED, replace(COUNTED, ops=head), same_machine=False).verdict == GateVerdict.PASS


@pytest.mark.parametrize(
    "head",
    [{"decoder_layers on cpu": 4, "linear on cpu": 1}, {**OPS, "linear on cpu": 39}, {**OPS, "new on reference": 3}],
)
def test_ops_that_became_parts_of_others_are_no_loss(head: dict[str, int]) -> None:
    base = replace(COUNTED, ops={name: count for name, count in OPS.items() if name in head or "cpu" in name})
    assert counters.compare("row", base, replace(COUNTED, ops=head)).verdict == GateVerdict.PASS


def test_ops_that_always_ran_on_the_reference_run_more_often_where_there_are_more_steps() -> None:
    """Fewer accepted tokens make more steps, and acceptance is where the regression is."""
    slower = replace(
        COUNTED, counters={"target_forwards": 5}, ops={**OPS, "linear on cpu": 50, "silu_mul on reference": 5}
    )
    found = counters.compare("row", COUNTED, slower)
    assert (found.verdict, found.where) == (GateVerdict.REGRESSED, "acceptance")


@pytest.mark.slow
def test_a_drift_of_one_percent_a_merge_is_found_by_the_anchor_alone() -> None:
    merges = [launches_of(drafted([0.5 * 1.01**merge] * 3), merge) for merge in range(9)]
    for before, after in pairwise(merges):
        timed = [finding for finding in trial(before, after).findings() if finding.level == 1]
        assert {finding.verdict for finding in timed} == {GateVerdict.PASS}
    found = trial(merges[-2], merges[-1], anchor=merges[0]).findings()
    worse = [finding for finding in found if finding.verdict == GateVerdict.REGRESSED]
    assert {(finding.figure, finding.against) for finding in worse} == {(DECODE, "anchor"), (WHOLE, "anchor")}
    assert worse[0].message.startswith("against the anchor, +8.")


def test_five_merges_that_slow_everything_pass_one_by_one_and_an_anchor_must_hold_plain() -> None:
    """Five of 14 % are 1.93x. Each passed, and so did an anchor that held plain over nothing."""

    def after(merges: int, peer: bool) -> Record:
        slower = 1.14**merges
        return launches_of(slowed(slower, 0.5 * slower, peer), merges)

    alone, beside = after(0, peer=False), after(0, peer=True)
    step = judged(alone, after(1, peer=False)).values()
    assert {one.verdict for one in step} == {GateVerdict.PASS}
    rules = cast(Any, SimpleNamespace(anchor="a.json", on_mismatch="ignore"))
    for anchor in (alone, replace(alone, rows={DRAFTED.id: alone.rows[DRAFTED.id]})):
        with pytest.raises(GateError, match=r"a.json cannot hold plain decoding.* --specdec-peer transformers"):
            refuse_unfit_anchor(rules, anchor)
    refuse_unfit_anchor(rules, beside)
    last = after(5, peer=True)
    found = [one for one in trial(last, last, anchor=beside).findings() if one.verdict == GateVerdict.REGRESSED]
    assert (PLAIN.id, DECODE, "anchor") in {(one.row, one.figure, one.against) for one in found}


def test_a_gain_since_the_anchor_is_no_news_and_a_row_that_it_lacks_is_told() -> None:
    old, new = launches_of(drafted([0.5] * 3), 0), launches_of(drafted([0.4] * 3), 1)
    found = [finding for finding in trial(new, new, anchor=old).findings() if finding.against == "anchor"]
    assert {finding.verdict for finding in found} == {GateVerdict.PASS}
    lacking = replace(old, rows={PLAIN.id: old.rows[PLAIN.id]})
    found = trial(new, new, anchor=lacking).findings()
    assert "the anchor has no such row" in [finding.message for finding in found]
    assert [one.verdict for one in found if one.row == "suite" and "anchor" in one.message] == [GateVerdict.ERROR]


def test_an_anchor_of_other_prompts_or_of_too_few_launches_is_refused() -> None:
    old, new = launches_of(drafted([0.5] * 3), 0), launches_of(drafted([0.5] * 3), 1)
    other = replace(old, rows={name: replace(row, inputs={"prompts": "q"}) for name, row in old.rows.items()})
    found = [one for one in trial(new, new, anchor=other).findings() if one.against == "anchor"]
    assert {one.verdict for one in found} == {GateVerdict.ERROR}
    assert "measured otherwise than the anchor" in found[0].message
    with pytest.raises(GateError, match=r"--gate-anchor a.json holds 2 launches of a row and takes 5"):
        refuse_unfit_anchor(cast(Any, SimpleNamespace(anchor="a.json", on_mismatch="fail")), old.last(2))


def test_an_anchor_is_held_against_this_machine_with_the_device_that_the_anchor_ran_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A checkout learns what its rows run on only when they have run."""
    monkeypatch.setattr("benchsuite.gate.figures.machine", lambda device: {"cores": 2, "device": device})
    rules = cast(Any, SimpleNamespace(anchor="a.json", on_mismatch="fail"))
    made = launches_of(slowed(1.0, 0.5, peer=True), 0)
    for device in ("H200", None):
        refuse_unfit_anchor(rules, replace(made, made={"machine": {"cores": 2, "device": device}}))
    with pytest.raises(GateError, match="made on another machine"):
        refuse_unfit_anchor(rules, replace(made, made={"machine": {"cores": 4, "device": "H200"}}))


@pytest.mark.parametrize(
    ("changed", "machine", "verdict", "message"),
    [
        ({"prompts": "q"}, {}, GateVerdict.ERROR, "measured otherwise than the baseline: other prompts"),
        ({"tokenizer": "u"}, {}, GateVerdict.ERROR, "other tokenizer"),
        ({"weights": "x"}, {}, GateVerdict.ERROR, "other weights"),
        ({"weights": "x"}, {"machine": {"processor": "another"}}, GateVerdict.INCONCLUSIVE, "numerics: the weights"),
    ],
)
def test_other_prompts_or_weights_are_measured_otherwise_and_not_numerics(
    changed: dict[str, str], machine: dict[str, Any], verdict: GateVerdict, message: str
) -> None:
    base = launches_of(drafted([0.5] * 3), 0)
    rows = {name: replace(row, inputs={**row.inputs, **changed}, digest="other") for name, row in base.rows.items()}
    found = trial(base, Record(machine, rows)).findings()
    told = [finding for finding in found if finding.row == DRAFTED.id and finding.level == 0]
    assert [one.verdict for one in told] == [verdict]
    assert message in told[0].message


def test_tokenizers_of_one_vocabulary_that_cut_texts_otherwise_have_other_digests() -> None:
    one, two = byte_tokenizer(), byte_tokenizer()
    two.backend_tokenizer.normalizer = normalizers.Lowercase()
    assert one.get_vocab() == two.get_vocab()
    assert inputs.tokenizer_digest(one) != inputs.tokenizer_digest(two)


def test_a_digest_changes_with_a_turn_a_token_a_template_and_a_bit() -> None:
    questions = [Question(("a", "b")), Question(("c",))]
    assert inputs.prompts_digest(questions) != inputs.prompts_digest([Question(("a", "b", "c"))])
    assert inputs.prompts_digest(questions) != inputs.prompts_digest(questions[::-1])
    assert inputs.rendered_digest([(1, 2), (3,)]) != inputs.rendered_digest([(1,), (2, 3)])
    one, two = byte_tokenizer(), byte_tokenizer()
    assert inputs.tokenizer_digest(one) == inputs.tokenizer_digest(two)
    two.chat_template = "{{ messages }}"
    assert inputs.tokenizer_digest(one) != inputs.tokenizer_digest(two)
    for dtype in (torch.float32, torch.bfloat16):
        model = nn.Linear(300, 200).to(dtype)
        before = inputs.weights_digest(model)
        assert inputs.weights_digest(model) == before
        with torch.no_grad():
            model.weight[137, 211] *= 1 + 2.0**-7
        assert inputs.weights_digest(model) != before


def test_the_order_of_the_sides_is_balanced_in_every_two_pairs_and_fresh_in_every_gating() -> None:
    def ran(seed: int | None) -> tuple[list[str], int | None]:
        made = Record({}, {"r": GatedRow(launches=(Launch({CALL: FigureTimes((1.0,))}),))})
        launcher = cast(Launcher, SimpleNamespace(measure=lambda *given, **named: made))
        sides = LiveSides(launcher, None, lambda text: None, seed=seed)
        sides.at_least(12)
        return sides.ran, sides.seed

    orders = [ran(None) for _ in range(20)]
    assert len({tuple(order) for order, _ in orders}) > 10
    for order, seed in orders:
        pairs = [tuple(order[i : i + 2]) for i in range(0, 24, 2)]
        assert all({*pairs[i : i + 2]} == {("base", "head"), ("head", "base")} for i in range(0, 12, 2))
        assert ran(seed)[0] == order, "the recorded seed does not repeat the order"


def test_no_slowdown_is_told_without_calling_a_gain_within_the_tolerance() -> None:
    """It said: -3.9 %, within the tolerance of 3.0 %."""
    seconds = cycle((0.43, 0.49, 0.54, 0.46, 0.47))
    head = launches_of(lambda noise: drafted([next(seconds)] * 3)(noise), 1)
    found = judged(launches_of(drafted([0.5] * 3), 0), head)["ngram", DECODE]
    assert found.verdict == GateVerdict.PASS
    assert found.change is not None
    assert found.change < -0.03
    assert found.message.endswith("; a slowdown of 6.0% is excluded")


def test_every_part_is_named_in_a_launch_of_ours() -> None:
    launch = gated_rows([timed_outcome(0.5)], [timed_outcome()])[DRAFTED.id].launches[0]
    assert {figure: set(parts) for figure, parts in launch.parts.items()} == {DECODE: {*PARTS}, FIRST: {*PARTS}}
    assert sum(launch.parts[DECODE].values()) == pytest.approx(5.0), "a step of half a second over 0.1 s a token"
