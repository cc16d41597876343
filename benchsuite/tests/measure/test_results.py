"""Figures equal those computed by hand; tables stay readable."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from math import log
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchsuite.conformance.models import families
from benchsuite.judge.fidelity import Fidelity
from benchsuite.judge.ties import Difference
from benchsuite.machine.files import strict_json
from benchsuite.measure import workloads
from benchsuite.measure.arms import Arm
from benchsuite.measure.figures import KEYS
from benchsuite.measure.interval import Estimate, estimate
from benchsuite.measure.paired import Series
from benchsuite.measure.rows import Machine, Row, Text, hinges, make_rows, text_of
from benchsuite.measure.runners import Outcome
from benchsuite.measure.units import Unit
from benchsuite.measure.verdict import SpeedVerdict
from benchsuite.measure.weights import Weights, perplexity, texts
from benchsuite.report import tables
from benchsuite.report.document import Section
from benchsuite.report.renderers import section_lines
from benchsuite.tests.rig import SETTING
from specdec import Request, catalog
from specdec.devices import Stopwatch
from specdec.stats import Call, Marks, RowStep, Stats, Step

MACHINE = Machine("tiny", "reference", "cpu", "float32", 1000, 10, 1e6, 77)
PLAIN, AGAIN = Arm(SETTING), Arm(SETTING, again=True)
NGRAM = Arm(SETTING, draft="ngram", k=2)


def outcome(steps: list[tuple[int, int, int, int, float, float]], watch: Stopwatch, between: float = 0.0) -> Outcome:
    """An outcome of steps (k, proposed, accepted, emitted, draft seconds, target seconds) and 1 s of rest each.

    A quarter of the draft's time is in ``observe``; of the rest 0.1 s is the policy's, 0.15 s the commit's. The draft's
    ``release`` takes ``between`` seconds.
    """
    stats = Stats(watch)
    for k, proposed, accepted, emitted, draft, target in steps:
        start = len(watch.marks)
        now = float(watch.marks[-1]) if watch.marks else 0.0  # type: ignore[arg-type]
        parts = [0.0, 0.125, 0.75 * draft, target, 0.1, 0.15, 0.25, 0.25 * draft, 0.375]
        watch.marks += itertools.accumulate([now, *parts])
        each = (RowStep(proposed, proposed, accepted, emitted),)
        stats.steps.append(Step.of(each, k + 1, Marks(*range(start, start + 10))))
        stats.proposed(proposed, proposed)
        stats.accepted(accepted)
        stats.counts["num_emitted_tokens"] += emitted
    watch.marks += [watch.marks[-1], float(watch.marks[-1]) + between]  # type: ignore[arg-type]
    stats.calls.append(Call("release", len(watch.marks) - 2, len(watch.marks) - 1))
    total = sum(s[4] + s[5] + 1 for s in steps) + between
    emitted = sum(s[3] for s in steps)
    tokens = [tuple(range(emitted))]
    return Outcome(tokens, total + 0.5, total, emitted, [[(0.5, 1), (1.0, emitted - 1)]], len(steps), 20.0, stats)


def rows(series: tuple[Series, Series], text: Text | None = None) -> tuple[Row, Row]:
    """The rows of plain and of ngram over one workload."""
    pools = {one.arm: {"chat": one} for one in series}
    found = make_rows(pools, PLAIN, MACHINE, "chat", text, {NGRAM: 0.125})
    return found[PLAIN], found[series[1].arm]


@pytest.fixture
def pair() -> tuple[Series, Series]:
    """Plain: 4 tokens of 2 + 1 s. ngram: 2 proposals, both kept; 2, none kept; none proposed; 1 s at its end."""
    watch = Stopwatch(device=torch.device("cpu"))
    plain = outcome([(0, 0, 0, 1, 0.0, 2.0)] * 4, watch)
    fast = outcome([(2, 2, 2, 3, 0.5, 3.0), (2, 2, 0, 1, 0.5, 3.0), (0, 0, 0, 1, 0.0, 2.0)], watch, between=1.0)
    unit = Unit((), 0)
    series = Series(NGRAM, "exact", [unit], [fast], [plain], compared=1, equal=1, tokens=4)
    return Series(PLAIN, "exact", [unit], [plain], [plain]), series


def test_a_rows_figures_are_those_computed_by_hand(pair: tuple[Series, Series]) -> None:
    info = rows(pair)[1].info
    assert list(info) == list(KEYS)
    assert info["speedup"] == pytest.approx((12 / 4) / (13 / 5))
    assert (info["tokens_per_s"], info["plain_tokens_per_s"]) == pytest.approx((5 / 13, 4 / 12))
    assert (info["e2e_s"], info["e2e_speedup"]) == pytest.approx((13.5, (12.5 / 4) / (13.5 / 5)))
    assert info["tau"] == 5 / 3
    assert info["mean_acceptance_length"] == 1 + 2 / 2
    assert info["acceptance_rate"] == 2 / 4
    assert info["acceptance_by_position"] == [1 / 2, 1 / 2]
    assert info["verify_cost"] == pytest.approx(3 / 2)
    assert info["draft_cost"] == pytest.approx((1.0 + 1.0) / 2 / 4), "propose, observe and release"
    assert info["sum_of_parts"] == pytest.approx(5 / (1.5 + 1.5 + 1 + 0.25 * 4))
    shares = [info[f"{part}_share"] for part in ("control", "draft", "target", "accept", "commit")]
    assert shares == pytest.approx([0, 2 / 13, 8 / 13, 0.3 / 13, 0.45 / 13])
    assert info["overhead"] == pytest.approx(1 - sum(shares))
    assert info["mbu"] == pytest.approx(3 * (1000 + 10 * 20) / 13 / 1e6)
    assert info["contract_checked"] == "1/1"
    assert (info["verdict"], info["units"], info["speedup_low"], info["set_up_s"]) == (None, 1, None, 0.125)


def test_a_drafts_weights_count_into_the_bytes_that_move(pair: tuple[Series, Series]) -> None:
    pair[1].outcomes[0] = replace(pair[1].outcomes[0], draft_bytes=2400)
    assert rows(pair)[1].info["mbu"] == pytest.approx((3 * (1000 + 10 * 20) + 2400) / 13 / 1e6)


def test_a_block_of_tokens_that_arrives_with_the_first_is_not_free(pair: tuple[Series, Series]) -> None:
    """Five tokens at 0.5 s, three at 1.1 s: 0.6 s for three tokens, not for seven."""
    late = replace(pair[1].outcomes[0], emissions=[[(0.5, 5), (1.1, 3)], [(0.3, 8)]])
    pair[1].outcomes[0] = late
    info = rows(pair)[1].info
    assert late.tpot_s == pytest.approx([0.2])
    assert (info["ttft_ms"], info["tpot_ms"]) == pytest.approx((400, 200))
    assert late.gaps_s == pytest.approx([0.6])
    assert info["itl_p50_ms"] is None, "one gap has no percentiles"


def test_a_row_says_what_it_was_given(pair: tuple[Series, Series]) -> None:
    plain, ngram = (row.info for row in rows(pair))
    names = ("draft", "policy", "controller", "num_speculative_tokens")
    assert [plain[name] for name in names] == [None, None, None, 0]
    assert [ngram[name] for name in names] == ["ngram", "match", "fixed", 2]
    lookup = replace(pair[1], arm=Arm(SETTING, peer="transformers_prompt_lookup(k=3)"))
    peer = rows((pair[0], lookup))[1].info
    assert [peer[name] for name in names] == ["transformers_prompt_lookup(k=3)", None, None, 3]


def test_a_workloads_text_is_that_of_its_outputs_each_counted_once(pair: tuple[Series, Series]) -> None:
    """Two prompts, one of them run three times; without an output there is nothing to say."""
    first, second = (Unit((Request(n, prompt, SETTING.params(())),), n) for n, prompt in enumerate(((1, 2), (3,))))
    short = replace(pair[0].outcomes[0], tokens=[(5, 6)])
    plain = replace(pair[0], units=[first, first, first, second], outcomes=[short] * 4)
    bits: Any = SimpleNamespace(entropy=lambda prompt, output: float(len(prompt)))
    text = text_of(plain, bits)
    assert text is not None
    assert text.entropy_bits == 1.5
    assert text_of(replace(plain, units=[], outcomes=[]), bits) is None


def test_a_row_says_under_which_conditions_it_was_measured(pair: tuple[Series, Series]) -> None:
    """Each a value of its own, so that no two can be exchanged."""
    given: dict[str, Any] = {
        "batch": 2,
        "temperature": 0.25,
        "top_k": 3,
        "top_p": 0.75,
        "min_p": 0.125,
        "presence_penalty": 0.375,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.5,
        "seed": 4,
        "max_new_tokens": 5,
    }
    setting = SETTING.replaced(**given, workload="math")
    arms = replace(PLAIN, setting=setting), replace(NGRAM, setting=setting, policy="block", controller="adaptive", k=6)
    pools = {arm: {"math": replace(one, arm=arm)} for arm, one in zip(arms, pair, strict=True)}
    info = make_rows(pools, arms[0], MACHINE, "math", None, {})[arms[1]].info
    known = {"workload": "math", "device": "cpu", "dtype": "float32", "backend": "reference", "peak_memory_bytes": 77}
    strategy = {"draft": "ngram", "policy": "block", "controller": "adaptive", "num_speculative_tokens": 6}
    expected = {**given, **known, **strategy}
    assert {name: info[name] for name in expected} == expected


def test_the_plain_row_is_the_baseline_of_speed_one(pair: tuple[Series, Series]) -> None:
    info = rows(pair)[0].info
    assert info["speedup"] == info["sum_of_parts"] == info["tau"] == 1
    assert info["contract_checked"] == info["verdict"] == "baseline"
    assert info["acceptance_rate"] is info["mean_acceptance_length"] is None


def test_a_row_that_breaks_its_contract_shows_no_speed(pair: tuple[Series, Series]) -> None:
    bug = Difference(0, 3, (5, 6), (1.0, 0.5), (0.5, 1.0), (1.0, 0.5), 1e-5, False, "the other is wrong")
    pair[1].differences.append(bug)
    row = rows(pair)[1]
    assert all(row.info[key] is None for key in ("tokens_per_s", "speedup", "speedup_low", "sum_of_parts", "e2e_s"))
    assert row.info["contract_checked"] == "FAILED: 1 of 1 differ"
    assert row.failure
    assert "the other is wrong" in row.failure
    assert row.rounds == ()
    assert "FAILED" in tables.rows_table([row], tables.SPEED).rows[0]


def test_a_certified_tie_is_shown_and_keeps_the_speed(pair: tuple[Series, Series]) -> None:
    tie = Difference(0, 3, (5, 6), (1.0, 1.0), (1.0, 1.0), (1.0, 1.0), 1e-5, True, "both within the bound")
    pair[1].differences.append(tie)
    pair[1].equal = 0
    row = rows(pair)[1]
    assert row.info["contract_checked"] == "0/1, 1 tie"
    assert "exact: 0/1, 1 tie" in tables.rows_table([row], tables.LATENCY).rows[0]
    assert row.failure is None
    assert row.n == 1


def over_units(pair: tuple[Series, Series], ratios: list[float], repeated: int = 1) -> Row:
    """The row of ngram over units in which it is so many times as fast, each run ``repeated`` times."""
    plain, fast = pair
    units = [Unit((), number) for _ in range(repeated) for number in range(len(ratios))]
    ours = [
        replace(fast.outcomes[0], decode_s=plain.outcomes[0].seconds_per_token / ratio * 5)
        for _ in range(repeated)
        for ratio in ratios
    ]
    theirs = plain.outcomes * len(units)
    grown = (
        Series(PLAIN, "exact", units, theirs, theirs),
        Series(NGRAM, "exact", units, ours, theirs, compared=len(units), equal=len(units)),
    )
    return rows(grown)[1]


def test_more_ties_than_rounding_explains_fail_a_row(pair: tuple[Series, Series]) -> None:
    tie = Difference(0, 3, (5, 6), (1.0, 1.0), (1.0, 1.0), (1.0, 1.0), 1e-5, True, "both within the bound")
    pair[1].differences += [tie] * 6
    pair[1].tokens, pair[1].equal = 48, 0
    row = rows(pair)[1]
    assert "6 certified ties in 48 compared tokens" in (row.failure or "")
    assert row.info["contract_checked"] == "FAILED: 0/1, 6 ties"
    assert row.info["speedup"] is None


def test_rows_that_pass_by_themselves_can_fail_together(pair: tuple[Series, Series]) -> None:
    """The p-value of all rows of an arm is tested like that of each: many small shifts are one large one."""
    shifted = Fidelity([26, 26, 26, 26, 26, 12, 12, 12, 12, 12], 0, 190, 1.0, 190, 1.0)
    assert shifted.failure is None
    names = [f"kind {i}" for i in range(4)]
    ours = {name: replace(pair[1], contract="distribution", fidelity=shifted) for name in names}
    pools: dict[Arm, Any] = {PLAIN: dict.fromkeys(names, pair[0]), NGRAM: ours}
    alone = make_rows(
        {arm: {names[0]: pool[names[0]]} for arm, pool in pools.items()}, PLAIN, MACHINE, "chat", None, {}
    )
    assert alone[NGRAM].failure is None
    together = make_rows(pools, PLAIN, MACHINE, "all", None, {})[NGRAM]
    assert "do not follow the target's distribution" in (together.failure or "")
    assert together.info["verdict"] == "FAILED"


def test_the_figure_over_workloads_is_the_mean_of_their_means(pair: tuple[Series, Series]) -> None:
    """Three prompts twice as fast, two of another kind four times: 2.83, not 2.64 (their mean) nor 2 (their median)."""
    plain, fast = pair
    unit = plain.outcomes[0].seconds_per_token

    def sped(*ratios: float) -> tuple[Series, Series]:
        units = [Unit((), number) for number in range(len(ratios))]
        ours = [replace(fast.outcomes[0], decode_s=5 * unit / ratio) for ratio in ratios]
        theirs = plain.outcomes * len(ratios)
        return Series(PLAIN, "exact", units, theirs, theirs), Series(NGRAM, "exact", units, ours, theirs)

    kinds = {"chat": sped(2.0, 2.0, 2.0), "code": sped(4.0, 4.0)}
    pools = {arm: {name: both[i] for name, both in kinds.items()} for i, arm in enumerate((PLAIN, NGRAM))}
    row = make_rows(pools, PLAIN, MACHINE, "all", None, {})[NGRAM]
    assert row.info["speedup"] == pytest.approx(8**0.5)


RATIOS = [1.1, 1.2, 1.15, 1.3, 1.05, 1.22]


def test_repeats_of_a_prompt_narrow_no_interval(pair: tuple[Series, Series]) -> None:
    once, thrice = over_units(pair, RATIOS), over_units(pair, RATIOS, repeated=3)
    for key in ("speedup", "speedup_low", "speedup_high", "units"):
        assert thrice.info[key] == pytest.approx(once.info[key])
    assert once.info["units"] == 6
    assert over_units(pair, RATIOS[:3], repeated=6).info["speedup_low"] is None, "three prompts have no interval"


def test_a_round_is_a_pass_in_seconds_per_token(pair: tuple[Series, Series]) -> None:
    """pytest-benchmark averages rounds: they must be of the same work, whatever the prompts."""
    row = over_units(pair, RATIOS, repeated=3)
    expected = sum(3 / ratio * 5 for ratio in RATIOS) / (5 * len(RATIOS))
    assert row.rounds == pytest.approx([expected] * 3)


@pytest.mark.parametrize(
    ("ratios", "noise", "reason", "said"),
    [
        (RATIOS, 0.0, None, "faster"),
        ([1 / r for r in RATIOS], 0.0, None, "slower"),
        ([1.1, 0.9, 1.15, 0.95, 1.05, 0.97], 0.0, None, "~"),
        (RATIOS, 0.2, None, "~"),
        (RATIOS, 0.0, "loops: all of it", "not comparable"),
        (RATIOS[:5], 0.0, None, None),
    ],
)
def test_a_verdict_needs_an_interval_without_1_and_more_than_the_noise(
    ratios: list[float], noise: float, reason: str | None, said: str | None
) -> None:
    assert SpeedVerdict(estimate({"chat": [log(ratio) for ratio in ratios]}), noise, reason).label == said


def test_one_odd_prompt_among_many_is_named() -> None:
    """Eleven prompts gain 1 % and one is a hundred times as fast: the mean of 1.48 is that prompt's."""
    usual = {f"kind {i}": [log(1.01), log(1.01)] for i in range(5)}
    odd = {**usual, "odd": [log(1.01), log(100.0)]}
    assert hinges(odd, estimate(odd))
    even = {name: [log(1.48), log(1.5)] for name in odd}
    assert not hinges(even, estimate(even))


@pytest.mark.parametrize(
    ("others", "odd", "named"),
    [
        ([0.1] * 6, 0.9, True),  # 0.21 without it 0.1: more than half, and no spread is left
        ([0.1] * 6, 0.6, False),  # 0.17 without it 0.1: less than half
        ([-0.3, 0.5] * 3, 0.9, False),  # as much, but the interval is as wide without it
        ([0.01] * 6, 0.1, False),  # 1.02: a speedup within 5 % of 1 hinges on nothing
    ],
)
def test_a_prompt_is_odd_if_more_than_half_of_figure_and_interval_are_its(
    others: list[float], odd: float, named: bool
) -> None:
    logs = {"kind": [*(value + 1e-4 * number for number, value in enumerate(others)), odd]}
    assert hinges(logs, estimate(logs)) is named


def test_a_speedup_of_just_the_noise_and_an_interval_that_ends_at_1_say_nothing() -> None:
    found = Estimate(1.25, 1.0, 1.5625, 6, "by hand")
    assert (
        SpeedVerdict(found, 0.0, None).label
        == SpeedVerdict(replace(found, low=0.8, high=1.0, ratio=0.9), 0.0, None).label
        == "~"
    )
    apart = replace(found, low=1.2)
    assert SpeedVerdict(apart, log(1.25), None).label == "~"
    assert SpeedVerdict(apart, log(1.2499), None).label == "faster"


def wide(row: Row) -> Row:
    """The widest values that a row has in practice."""
    big: dict[str, Any] = {
        "tokens_per_s": 12345.6,
        "speedup": 12.34,
        "speedup_low": 10.01,
        "speedup_high": 15.99,
        "ttft_ms": 12345.0,
    }
    big |= {"contract_checked": "105/108, 12 ties", "contract": "exact", "marks": ("replays",)}
    big |= {"overhead": -0.123, "acceptance_rate": 1.0, "draft_cost": 12.345, "verify_cost": 12.34, "units": 108}
    big |= {"verdict": "slower", "e2e_s": 123.45, "e2e_speedup": 12.34, "ttft_draft_ms": 1234.5, "set_up_s": 123.45}
    big |= {"tpot_ms": 1234.5, "itl_p50_ms": 1234.5, "itl_p90_ms": 1234.5, "itl_p99_ms": 1234.5}
    arm = replace(NGRAM, draft="transformers_prompt_lookup_x", policy="rejection", k=16)
    return replace(row, figures=replace(row.figures, **big), arm=arm)


def test_every_table_fits_120_columns_at_its_widest(pair: tuple[Series, Series]) -> None:
    row = wide(rows(pair, Text(0.5, 1.25))[1])
    every = [replace(row, figures=replace(row.figures, workload=kind)) for kind in workloads.KINDS]
    found = [tables.rows_table([row], columns) for columns in (tables.SPEED, tables.LATENCY, tables.REASONS)]
    tie, *ties = (replace(one, figures=replace(one.figures, verdict="~")) for one in (row, *every))
    found.append(tables.overview([tie], ties))
    lines = section_lines(Section(parts=found))
    assert max(map(len, lines)) <= 120, "\n".join(lines)
    assert max(map(len, tables.LEGEND)) <= 120


def test_csv_and_json_of_the_same_rows_agree(pair: tuple[Series, Series]) -> None:
    both = list(rows(pair, Text(0.5, 1.25)))
    lines = tables.as_csv(both).splitlines()
    header, cells = lines[0].split(","), lines[2].split(",")
    assert float(cells[header.index("speedup")]) == both[1].info["speedup"]
    assert json.loads(strict_json(both[1].info)) == both[1].info
    with pytest.raises(ValueError, match="JSON"):
        strict_json({"speedup": float("nan")})


def test_what_ran_is_added_up_over_rows_backend_by_backend(pair: tuple[Series, Series]) -> None:
    for series, count in zip(pair, (3, 4), strict=True):
        stats = series.outcomes[0].stats
        assert stats
        stats.ops.update({("linear", "cpu"): count, ("linear", "reference"): 1, ("sample", "cpu"): 1000})
    both = list(rows(pair))
    assert both[1].info["counters"]["ops"] == {"linear": {"cpu": 4, "reference": 1}, "sample": {"cpu": 1000}}
    assert tables.op_lines(both) == ["ops on cpu: linear 7, sample 2,000", "ops on reference: linear 2"]


def test_the_table_of_weights_sets_them_against_the_unrounded() -> None:
    one = Weights("tiny", "int8", 2**30, 2**32, 11.0, 10.0, 7)
    table = tables.weights_table([one])
    assert dict(zip(table.headers, table.rows[0], strict=True)) == {
        "target": "tiny",
        "weights": "int8",
        "GiB": "1.000",
        "of unrounded": "0.25",
        "perplexity": "11.000",
        "unrounded": "10.000",
        "change %": "+10.00",
        "tokens": "7",
    }


def test_perplexity_of_a_uniform_distribution_is_the_vocabulary() -> None:
    model = families.build_model("llama")
    with torch.no_grad():
        model.get_output_embeddings().weight.zero_()
    assert perplexity(model, [(1, 2, 3), (4, 5)]) == pytest.approx(258)


def test_the_fixed_text_is_three_prompts_of_each_kind() -> None:
    tokenizer = catalog.byte_tokenizer()
    expected = [prompt for kind in workloads.KINDS for prompt in workloads.load_workload(kind).encode(tokenizer)[:3]]
    assert texts(tokenizer) == expected
    assert len(expected) == 18
