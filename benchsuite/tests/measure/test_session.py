"""A session over the tiny target: what its card expects, how often it reports, what it keeps and what it refuses."""

from __future__ import annotations

import gzip
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from benchsuite.measure import weights
from benchsuite.measure.arms import Arm
from benchsuite.measure.cells import Cell
from benchsuite.measure.peers import PeerRunner
from benchsuite.measure.plan import MeasuringPlan
from benchsuite.measure.rows import Row
from benchsuite.measure.session import Bench
from benchsuite.tests.rig import SETTING
from specdec import Context, Draft, SpecdecError, Window, catalog
from specdec.amounts import amount
from specdec.interfaces import Env

TINY = SETTING.replaced(backend="reference", max_new_tokens=4)
NGRAM, PEER = Arm(TINY, draft="ngram", k=2), Arm(TINY, peer="transformers")


def untold(text: str) -> None:
    """Report to nobody."""


def prepared_bench(*arms: Arm, keep: Callable[[Cell], None] = lambda cell: None, **plan: Any) -> Bench:
    """A session with these arms, of one prompt unless said otherwise."""
    bench = Bench(MeasuringPlan(**{"prompts": 1, **plan}), keep=keep)
    bench.prepare(arms)
    return bench


def all_rows(bench: Bench, report: Callable[[str], None] = untold) -> dict[Arm, Row]:
    """Every arm's row."""
    return {arm: bench.row(arm, report) for arm in bench.arms}


@pytest.fixture
def a_second_a_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock on which nothing takes time but the forwards of a target with its head, a second each."""
    now, forward = [100.0], LlamaForCausalLM.forward

    @wraps(forward)
    def slow(self: Any, *given: Any, **named: Any) -> Any:
        now[0] += 1.0
        return forward(self, *given, **named)

    monkeypatch.setattr(LlamaForCausalLM, "forward", slow)
    monkeypatch.setattr(time, "perf_counter", lambda: now[0] + 0.0)
    monkeypatch.setattr("benchsuite.machine.clock.perf_counter", lambda: now[0])
    monkeypatch.setattr("benchsuite.machine.roofline.read_bandwidth", lambda device: 1e9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arms", "changed", "plan", "said"),
    [
        # Plain, plain again and plain once more for drafts that replay it: 4 s each, at once and as two warm-ups.
        ([NGRAM, PEER], {}, {}, "about 67 s"),  # ngram takes 1.6 times as long, the peer as long
        ([Arm(TINY)], {"max_new_tokens": 2}, {"prompts": 2, "pairs": 3}, "about 48 s"),  # (6 + 2) * 3 * 2 s
        ([Arm(TINY)], {"max_new_tokens": 12}, {}, "about 84 s"),  # (1 + 2 * 8 / 12) * 3 * 12 s
        ([PEER], {"batch": 2, "max_new_tokens": 2}, {"prompts": 2}, "about 30 s"),  # the peer one by one: 2 * 2 s
        ([Arm(TINY)], {}, {"precision": 0.5}, "for a pass over the prompts, about 36 s"),
        ([Arm(TINY)], {}, {"budget": 91.0}, "at most 2 min of measuring"),
    ],
)
def test_the_card_expects_what_short_runs_of_plain_and_of_the_peers_took(
    arms: list[Arm], changed: dict[str, Any], plan: dict[str, Any], said: str, a_second_a_forward: None
) -> None:
    bench = prepared_bench(*(replace(arm, setting=arm.setting.replaced(**changed)) for arm in arms), **plan)
    prompts = plan.get("prompts", 1)
    most = changed.get("max_new_tokens", 4)
    kinds = 2 + sum(arm not in (Arm(TINY),) for arm in arms)
    assert f"{kinds} arms x {amount(prompts, 'prompt')} x up to {most} tokens: {said}" in bench.card
    assert any("one forward took 1000.00 ms" in line for line in bench.card)


@pytest.mark.slow
def test_a_pass_reports_as_often_as_was_announced() -> None:
    chat, turns = (Arm(TINY.replaced(workload=name, max_new_tokens=2)) for name in ("chat", "multi_turn"))
    bench, told = prepared_bench(chat, turns, pairs=2), list[str]()
    rows = all_rows(bench, told.append)
    assert len(told) == bench.ticks
    assert Counter(text.split(",")[0] for text in told) == {"chat": 2 * (2 + 1 + 2), "multi_turn": 2 * (6 + 1 + 2)}
    assert [row.failure for row in rows.values()] == [None] * 4
    assert [len(row.measured) for row in rows.values()] == [2, 2, 6, 6]
    assert [(workload, place) for workload, place, _ in bench.prompts()] == [("chat", 0), ("multi_turn", 0)]
    assert [arm.label for arm, _ in bench.engines()] == ["plain", "plain again"]
    assert [(setting.workload, stage.machine.target) for setting, stage in bench.stages()] == [("", "tiny")]
    assert [(one.units, one.workload.name) for one in bench.compared()] == [(1, "chat"), (3, "multi_turn")]
    [_, measured] = [one.series for one in bench.compared()]
    assert bench.units(turns.setting) == measured[turns].units[:3] == measured[turns].units[3:]
    assert bench.device is None
    assert replace(bench.plan, precision=0.5).chooses


@pytest.mark.slow
def test_a_workload_that_does_not_fit_is_refused_by_its_name_and_texts_that_end_with_the_model_are_said() -> None:
    long = Arm(TINY.replaced(workload="long_2k"), draft="ngram", k=2)
    with pytest.raises(SpecdecError, match="the workload long_2k does not fit tiny: the prompt .* more positions$"):
        prepared_bench(NGRAM, long)
    card = prepared_bench(Arm(TINY.replaced(max_new_tokens=5000))).card
    assert "tiny has 4096 positions: texts end there, before 5000 tokens" in card
    assert not [line for line in prepared_bench(Arm(TINY)).card if "positions" in line]


@pytest.mark.slow
def test_a_setting_that_cannot_be_built_fails_its_own_rows_and_the_card_names_it() -> None:
    missing = Arm(TINY.replaced(target="nowhere/nothing"), draft="ngram", k=2)
    kept = list[Cell]()
    bench = prepared_bench(NGRAM, missing, keep=kept.append)
    assert {arm.setting.target for arm in bench.arms} == {"tiny"}
    [line] = [line for line in bench.card if line.startswith("not measured: ")]
    assert line.startswith("not measured: nowhere/nothing-backendreference-")
    with pytest.raises(SpecdecError, match="nothing"):
        bench.row(missing, untold)
    assert [row.failure for row in all_rows(bench).values()] == [None] * 3
    assert [cell.setting for cell in kept] == [TINY]
    assert list(kept[0].series) == bench.arms
    with pytest.raises(SpecdecError, match="nothing"):
        prepared_bench(missing)
    again = Bench(MeasuringPlan(prompts=1))
    again.add(kept[0])
    again.prepare([NGRAM])
    assert (again.arms, again.row(NGRAM, untold).info) == ([], bench.row(NGRAM, untold).info)


@pytest.mark.parametrize(
    ("arm", "plan", "message"),
    [
        (replace(NGRAM, draft="nogram"), {}, "unknown draft 'nogram'"),
        (replace(NGRAM, policy="mach"), {}, "unknown policy 'mach'"),
        (replace(NGRAM, controller="fixt"), {}, "unknown controller 'fixt'"),
        (replace(PEER, peer="tgi"), {}, "unknown peer 'tgi'"),
        (NGRAM, {"baseline": "trie"}, "unknown arm 'trie'"),
        (replace(NGRAM, setting=TINY.replaced(batch=3)), {"prompts": 2}, "--specdec-batch 3 takes 3 different prompts"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_measured(arm: Arm, plan: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecdecError, match=message):
        prepared_bench(arm, **plan)


class OddDraft(Draft):
    """Cannot say how many bytes it reads."""

    def __init__(self, env: Env) -> None:
        self.env = env

    def propose(self, context: Context) -> Window:
        """Raise."""
        raise ValueError("odd")


class LayersDraft(OddDraft):
    """A draft that reads both layers of the tiny target."""

    hidden_layers = (0, 1)

    def propose(self, context: Context) -> Window:
        """Nothing."""
        return Window.root(context)


@pytest.mark.slow
def test_the_card_says_what_a_draft_that_reads_layers_costs_a_token_and_nothing_of_others() -> None:
    bench = Bench(MeasuringPlan(prompts=1))
    bench.registry.add("draft", "both", lambda env: LayersDraft(env), "the tests")
    bench.prepare([Arm(TINY, draft="both", k=2), NGRAM])
    assert [line for line in bench.card if "layers" in line] == [
        "note: both reads the outputs of layers 0, 1: 512 bytes a token"
    ]


@pytest.mark.slow
def test_a_plugin_that_raises_fails_its_own_row_and_plain_that_raises_every_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(MeasuringPlan(prompts=1))
    bench.registry.add("draft", "broken", OddDraft, "the tests")
    failing = Arm(TINY, draft="broken", k=2)
    bench.prepare([failing])
    rows = all_rows(bench)
    assert [(arm.label, row.info["failed"]) for arm, row in rows.items() if row.failure] == [("broken", "crashed")]
    bench = prepared_bench(Arm(TINY))
    plain, calls = next(engine for arm, engine in bench.engines() if arm.plain), list[int]()

    def run(requests: object) -> object:
        calls.append(1)
        raise ValueError("odd")

    monkeypatch.setattr(plain, "run", run)
    for arm in bench.arms:
        with pytest.raises(ValueError, match="odd"):
            bench.row(arm, untold)
    assert len(calls) == 1, "run again after it failed"
    assert (list(bench.compared()), [*bench.results().rows]) == ([], [])


FIXED = [(5, 6, 7, 8), (1, 2)]
"""In place of the fixed text."""


@pytest.fixture
def short_text(monkeypatch: pytest.MonkeyPatch) -> float:
    """A short fixed text, and the tiny model's perplexity on it."""
    monkeypatch.setattr(weights, "texts", lambda tokenizer: FIXED)
    return weights.perplexity(catalog.load("tiny", torch.device("cpu"), torch.float32).model, FIXED)


@pytest.mark.slow
def test_a_judge_reads_every_output_and_the_fixed_text(short_text: float) -> None:
    bench = prepared_bench(NGRAM, judge="tiny")
    assert [line for line in bench.card if line.startswith("perplexity")] == [
        f"perplexity of tiny on the fixed text, 4 tokens: {short_text:.3f}"
    ]
    rows = all_rows(bench)
    assert {row.info["judged_tokens"] for row in rows.values()} == {4}
    assert len({row.info["judged_perplexity"] for row in rows.values()} - {None}) == 1
    assert (bench.said, bench.weights) == ([], [])


@pytest.mark.slow
def test_rounded_weights_are_set_beside_those_before_rounding(short_text: float) -> None:
    bench = prepared_bench(Arm(TINY.replaced(dtype="int8")))
    [one] = bench.weights
    model = catalog.load("tiny", torch.device("cpu"), torch.float32).model
    assert (one.target, one.dtype, one.tokens) == ("tiny", "int8", 4)
    assert one.float_bytes == sum(parameter.numel() * 4 for parameter in model.parameters())
    assert one.bytes < 0.5 * one.float_bytes
    assert one.float_perplexity == pytest.approx(short_text)
    assert one.perplexity != one.float_perplexity
    assert one.perplexity == pytest.approx(one.float_perplexity, rel=0.05)
    [stage] = [stage for _, stage in bench.stages()]
    assert (stage.machine.dtype, stage.machine.weight_bytes) == ("int8", one.bytes)


@pytest.mark.slow
def test_a_precision_ends_a_search_after_the_fewest_units_that_show_a_spread() -> None:
    kept = list[Cell]()
    names = ("chat", "reasoning", "rewriting")
    arms = [Arm(TINY.replaced(workload=name, max_new_tokens=2)) for name in names]
    bench = prepared_bench(*arms, keep=kept.append, prompts=None, precision=1e9)
    rows = all_rows(bench)
    [said] = bench.said
    assert said.startswith("the precision is reached: every interval is within 1e+11 %, with 24 units; ")
    assert {row.info["units"] for row in rows.values()} == {8}, "24 of three workloads"
    assert [cell.setting.workload for cell in kept] == [*names]
    again = prepared_bench(arms[0], prompts=6, precision=1e-9)
    assert {row.info["units"] for row in all_rows(again).values()} == {6}, "prompts that ran again are no further units"
    assert again.said[0].startswith("all 6 prompts of each workload are used and a further pass narrows nothing: ")
    spent = prepared_bench(*arms, prompts=None, budget=1e-9)
    assert {row.info["units"] for row in all_rows(spent).values()} == {1}
    assert spent.said == ["the budget of 1e-09 s is spent"]


@pytest.mark.slow
def test_a_trace_is_written_for_each_of_our_arms_but_plain_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = Arm(TINY.replaced(max_new_tokens=2), draft="oracle(rate=0.5)", k=2)
    bench = prepared_bench(odd, Arm(odd.setting, peer="transformers"))
    all_rows(bench)
    bench.trace(odd.setting, tmp_path)
    names = {file.name for file in tmp_path.iterdir()}
    ids = {
        "".join(sign if sign.isalnum() or sign in "-_." else "-" for sign in arm.id) for arm in (Arm(odd.setting), odd)
    }
    assert names == {f"{name}.json.gz" for name in ids}
    assert any("oracle-rate-0.5-" in name for name in names)
    for file in tmp_path.iterdir():
        assert json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    closed = list[str]()
    for _, stage in bench.stages():
        for arm, runner in stage.runners.items():
            if isinstance(runner, PeerRunner):
                monkeypatch.setattr(runner.peer, "close", lambda label=arm.label: closed.append(label))
    bench.close()
    assert (closed, bench.said) == (["transformers"], [])


@pytest.mark.slow
def test_in_a_dry_run_random_proposals_stand_for_a_draft_that_does_not_fit_the_tiny_model() -> None:
    foreign = Arm(TINY, draft="draft_model(model=nowhere)", k=2)
    with pytest.raises(SpecdecError, match="nowhere"):
        prepared_bench(foreign)
    bench = prepared_bench(foreign, dry=True)
    [stands] = [line for line in bench.card if "stands for" in line]
    assert stands.startswith(
        "dry run: garbage stands for draft_model(model=nowhere), which does not fit the tiny model: "
    )
    [engine] = [engine for arm, engine in bench.engines() if arm.draft]
    assert type(engine.draft).__name__ == "Garbage"
    assert any(line.startswith("dry run: tiny would read ") for line in bench.card)
    with pytest.raises(SpecdecError, match="k|rate"):
        prepared_bench(Arm(TINY, draft="oracle(rate=7)", k=2), dry=True)


@pytest.mark.slow
def test_in_a_dry_run_no_target_is_loaded_but_the_tiny_one_by_us_or_by_a_peer(tmp_path: Path) -> None:
    """A folder with a config and no weights, which is refused otherwise."""
    catalog.read_config("tiny").save_pretrained(tmp_path)
    bare = TINY.replaced(target=str(tmp_path))
    bench = prepared_bench(Arm(bare), Arm(bare, peer="transformers"), dry=True)
    assert all(row.figures.speedup for row in all_rows(bench).values())
    with pytest.raises(SpecdecError, match=tmp_path.name):
        prepared_bench(Arm(bare))
