"""Figures equal those computed by hand; tables stay readable."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace

import pytest
import torch

from benchsuite.measure import workloads
from benchsuite.measure.matrix import Arm
from benchsuite.measure.paired import Series, interval, units
from benchsuite.measure.results import KEYS, Machine, Row, Text, make_row
from benchsuite.measure.runners import Outcome
from benchsuite.measure.ties import Difference
from benchsuite.measure.weights import Weights, perplexity
from benchsuite.prove import families
from benchsuite.report import folder, tables
from benchsuite.tests.rig import SETTING
from specdec import catalog
from specdec.devices import Stopwatch
from specdec.stats import Stats, Step

MACHINE = Machine("tiny", "reference", "cpu", "float32", 1000, 10, 1e6, 77)
PLAIN = Arm(SETTING)
NGRAM = Arm(SETTING, draft="ngram", k=2)


def outcome(steps: list[tuple[int, int, int, int, float, float]], cpu: Stopwatch) -> Outcome:
    """An outcome of steps (k, proposed, accepted, emitted, draft seconds, target seconds) and 1 s of rest each."""
    stats = Stats(cpu)
    for k, proposed, accepted, emitted, draft, target in steps:
        start = len(cpu._marks)
        now = float(cpu._marks[-1]) if cpu._marks else 0.0  # type: ignore[arg-type]
        cpu._marks += itertools.accumulate([now, draft, target, 0.25, 0.25, 0.5])
        stats.steps.append(Step(k, k + 1, 1, proposed, accepted, emitted, tuple(range(start, start + 6))))
        stats.proposed(proposed, proposed)
        stats.accepted(accepted)
        stats.counts["num_emitted_tokens"] += emitted
    total = sum(s[4] + s[5] + 1 for s in steps)
    emitted = sum(s[3] for s in steps)
    return Outcome([tuple(range(emitted))], total, emitted, [0.5], [0.25], len(steps), 20.0, stats)


@pytest.fixture
def pair() -> tuple[Series, Series]:
    """Plain: 4 tokens of 2 + 1 s. ngram: 2 proposals, both kept; 2 proposals, none kept; none proposed."""
    watch = Stopwatch(device=__import__("torch").device("cpu"))
    plain = outcome([(0, 0, 0, 1, 0.0, 2.0)] * 4, watch)
    fast = outcome([(2, 2, 2, 3, 0.5, 3.0), (2, 2, 0, 1, 0.5, 3.0), (0, 0, 0, 1, 0.0, 2.0)], watch)
    series = Series(NGRAM, "exact", [fast], [plain], compared=1)
    return Series(PLAIN, "exact", [plain], [plain]), series


def test_a_rows_figures_are_those_computed_by_hand(pair: tuple[Series, Series]) -> None:
    info = make_row(NGRAM, [pair[1]], MACHINE, "chat", None).info
    assert list(info) == list(KEYS)
    assert info["speedup"] == pytest.approx((12 / 4) / (12 / 5))
    assert (info["tokens_per_s"], info["plain_tokens_per_s"]) == pytest.approx((5 / 12, 4 / 12))
    assert info["tau"] == 5 / 3
    assert info["mean_acceptance_length"] == 1 + 2 / 2
    assert info["acceptance_rate"] == 2 / 4
    assert info["acceptance_by_position"] == [1 / 2, 1 / 2]
    assert info["verify_cost"] == pytest.approx(3 / 2)
    assert info["draft_cost"] == pytest.approx(1.0 / 2 / 4)
    assert info["predicted_speedup"] == pytest.approx(5 / (1.5 + 1.5 + 1 + 0.125 * 4))
    assert info["overhead"] == pytest.approx(1 - info["speedup"] / info["predicted_speedup"])
    assert info["mbu"] == pytest.approx(3 * (1000 + 10 * 20) / 12 / 1e6)
    assert info["contract_checked"] == "equal 1/1"


def test_the_plain_row_is_the_baseline_of_speed_one(pair: tuple[Series, Series]) -> None:
    info = make_row(PLAIN, [pair[0]], MACHINE, "chat", None).info
    assert info["speedup"] == info["predicted_speedup"] == info["tau"] == 1
    assert info["contract_checked"] == "baseline"
    assert info["acceptance_rate"] is info["mean_acceptance_length"] is None


def test_a_row_that_breaks_its_contract_shows_no_speed(pair: tuple[Series, Series]) -> None:
    bug = Difference(0, 3, (5, 6), (1.0, 0.5), (0.5, 1.0), (1.0, 0.5), 1e-5, False, "the other is wrong")
    pair[1].differences.append(bug)
    row = make_row(NGRAM, [pair[1]], MACHINE, "chat", None)
    assert all(row.info[key] is None for key in ("tokens_per_s", "speedup", "speedup_low", "predicted_speedup"))
    assert row.info["contract_checked"] == "FAILED: 1 of 1 differ"
    assert row.failure
    assert "the other is wrong" in row.failure
    assert "FAILED" in tables.render([row], tables.SPEED)


def test_a_certified_tie_is_counted_and_keeps_the_speed(pair: tuple[Series, Series]) -> None:
    tie = Difference(0, 3, (5, 6), (1.0, 1.0), (1.0, 1.0), (1.0, 1.0), 1e-5, True, "both within the bound")
    pair[1].differences.append(tie)
    row = make_row(NGRAM, [pair[1]], MACHINE, "chat", None)
    assert row.info["contract_checked"] == "equal 1/1, 1 ties"
    assert row.failure is None
    assert row.n == 1


def wide(row: Row) -> Row:
    """The widest values that a row has in practice."""
    big = {"tokens_per_s": 12345.6, "speedup": 12.34, "speedup_low": 10.01, "speedup_high": 15.99, "ttft_ms": 12345.0}
    info = {**row.info, **big, "contract_checked": "equal 108/108, 12 ties", "limited_by": "verification"}
    info |= {"overhead": -1.23, "acceptance_rate": 1.0, "draft_cost": 12.345, "verify_cost": 12.34}
    arm = replace(NGRAM, draft="transformers_prompt_lookup", policy="rejection", k=16)
    return replace(row, info=info, arm=arm, ratios=(1.0,) * 108)


def test_every_table_fits_120_columns_at_its_widest(pair: tuple[Series, Series]) -> None:
    row = wide(make_row(NGRAM, [pair[1]], MACHINE, "chat", Text(0.5, 1.25)))
    rows = [replace(row, info={**row.info, "workload": kind}) for kind in workloads.KINDS]
    found = [tables.render([row], tables.SPEED), tables.render([row], tables.REASONS), tables.overview([row], rows)]
    assert {max(map(len, table.splitlines())) <= 120 for table in found} == {True}, "\n".join(found)


def test_csv_and_json_of_the_same_rows_agree(pair: tuple[Series, Series]) -> None:
    rows = [
        make_row(arm, [series], MACHINE, "chat", Text(0.5, 1.25))
        for arm, series in zip((PLAIN, NGRAM), pair, strict=True)
    ]
    lines = tables.as_csv(rows).splitlines()
    header, cells = lines[0].split(","), lines[2].split(",")
    assert float(cells[header.index("speedup")]) == rows[1].info["speedup"]
    assert json.loads(folder.strict_json(rows[1].info)) == rows[1].info
    with pytest.raises(ValueError, match="JSON"):
        folder.strict_json({"speedup": float("nan")})


def test_an_interval_holds_the_median_and_narrows_with_agreement() -> None:
    values = [1.1, 1.2, 1.15, 1.3, 1.05, 1.22, 1.18]
    middle, low, high = interval(values)
    assert low <= middle == 1.18 <= high
    assert interval([1.5]) == (1.5, 1.5, 1.5)
    assert interval(values) == interval(values), "the bootstrap is not seeded"
    tight = interval([1.18 + (v - 1.18) / 10 for v in values])
    assert tight[2] - tight[1] < (high - low) / 5


def test_units_give_every_request_its_own_id() -> None:
    arm = replace(PLAIN, setting=replace(SETTING, batch=4))
    work = units([(1,), (2,), (3,)], arm, ())
    assert [len(unit) for unit in work] == [4, 4, 4]
    assert len({request.id for unit in work for request in unit}) == 12
    assert [request.prompt for request in work[1]] == [(2,), (3,), (1,), (2,)]


def test_copy_rate_counts_what_bigram_lookup_would_guess() -> None:
    assert workloads.copy_rate([1, 2, 3], [1, 2, 3]) == pytest.approx(1 / 3)
    assert workloads.copy_rate([1, 2, 3], [7, 8, 9]) == 0
    assert workloads.copy_rate([1, 2] * 4, [1, 2] * 4) == 1


@pytest.mark.parametrize("kind", workloads.KINDS)
def test_each_kind_has_three_prompts_that_fit_the_template(kind: str) -> None:
    text = workloads.load_workload(kind)
    assert len(text.prompts) >= 3
    assert len(set(text.prompts)) == len(text.prompts)
    for prompt, ids in zip(text.prompts, text.encode(catalog.byte_tokenizer()), strict=True):
        assert catalog.byte_tokenizer().decode(list(ids)) == f"<|turn|>user: {prompt}<|turn|>"


def test_what_ran_is_added_up_over_rows_backend_by_backend(pair: tuple[Series, Series]) -> None:
    for series, count in zip(pair, (3, 4), strict=True):
        stats = series.outcomes[0].stats
        assert stats
        stats.ops.update({("linear", "cpu"): count, ("linear", "reference"): 1, ("sample", "cpu"): 1000})
    rows = [make_row(series.arm, [series], MACHINE, "chat", None) for series in pair]
    assert rows[1].info["counters"]["ops"] == {"linear": {"cpu": 4, "reference": 1}, "sample": {"cpu": 1000}}
    assert tables.op_lines(rows) == ["ops on cpu: linear 7, sample 2,000", "ops on reference: linear 2"]


def test_the_table_of_weights_sets_them_against_the_unrounded() -> None:
    one = Weights("tiny", "int8", 2**30, 2**32, 11.0, 10.0, 7)
    header, _, body = tables.weights_table([one])
    cells = dict(zip(re.split(r"  +", header), re.split(r"  +", body), strict=True))
    assert cells == {
        "target": "tiny",
        "weights": "int8",
        "GiB": "1.000",
        "of unrounded": "0.25",
        "perplexity": "11.000",
        "unrounded": "10.000",
        "change %": "+10.00",
        "tokens": "7",
    }
    assert tables.weights_table([]) == []


def test_perplexity_of_a_uniform_distribution_is_the_vocabulary() -> None:
    model = families.build_model("llama")
    with torch.no_grad():
        model.get_output_embeddings().weight.zero_()
    assert perplexity(model, [(1, 2, 3), (4, 5)]) == pytest.approx(258)
