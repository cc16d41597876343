"""Strategies under load, live over the tiny model: what runs at once, outputs, figures made anew from the JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from math import exp, log
from pathlib import Path
from statistics import fmean, median
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchsuite.benches.load.bench import LoadBench, LoadPlan
from benchsuite.benches.load.equal_outputs import unequal_output
from benchsuite.benches.load.load_figures import token_ids_of
from benchsuite.benches.load.load_journal import LoadJournal
from benchsuite.benches.load.measured_load import MeasuredLoad
from benchsuite.benches.load.served_queue import TOKEN_IDS, ServedQueue, queued_request
from benchsuite.benches.serving.figures import Slo
from benchsuite.benches.serving.load import Sent, Traffic, due_times
from benchsuite.benches.serving.turns import BlockPlan
from benchsuite.conformance.models.tiny import registry
from benchsuite.judge.ties import Judge
from benchsuite.measure.arms import Arm, Setting
from benchsuite.measure.workloads import load_workload
from benchsuite.report.load import load_document, load_files, load_table, on_curve
from benchsuite.report.renderers import terminal
from benchsuite.run.load import LoadPlugin
from benchsuite.store.journal import Journal, manifest
from benchsuite.tests.rig import Make, requested
from specdec import Request, SamplingParams, SpecdecError, catalog
from specdec.model import ArenaModel

PROMPTS = ((5, 6, 7), (9, 8, 7, 6), (11, 12), (5, 5, 5, 5, 5), (40, 41), (1, 2, 3))
SHORT = SamplingParams(max_new_tokens=5)
ALONE: Any = SimpleNamespace()


def running_at_most(sent: Sequence[Sent]) -> int:
    """The most requests that ran at one moment; one that ends makes room at once."""
    moments = sorted([(one.ended_s, -1) for one in sent] + [(one.sent_s, 1) for one in sent])
    running = most = 0
    for _, change in moments:
        running += change
        most = max(most, running)
    return most


@pytest.mark.parametrize(("draft", "temperature"), [(None, 0.0), ("ngram", 0.0), ("ngram", 0.9)])
def test_a_queue_serves_every_request_once_with_the_output_of_one_alone(
    draft: str | None, temperature: float, assemble: Make
) -> None:
    """Two at once, then at times of their own; noise is that of the request's number, which is of prompt and round."""
    assembly, params = assemble(max_rows=2), replace(SHORT, temperature=temperature)
    queue = ServedQueue(assembly.engine(draft, max_rows=2), PROMPTS, params)
    closed = queue.block(BlockPlan("it", 0, 0, (0, 1, 2, 3, 4, 5), 1), Traffic(concurrency=2))
    opened = queue.block(BlockPlan("it", 1, 3, (4, 0, 2), 1), Traffic(rate=300.0))
    assert (closed.endpoint, closed.round, closed.group, opened.round, opened.group) == ("it", 0, 0, 1, 3)
    assert sorted(one.prompt for one in closed.sent) == [0, 1, 2, 3, 4, 5]
    assert sorted(one.prompt for one in opened.sent) == [0, 2, 4]
    assert running_at_most(closed.sent) == 2
    for turn, one in [(block.round, one) for block in (closed, opened) for one in block.sent]:
        reply = one.reply
        assert reply is not None
        request = queued_request(turn, one.prompt, PROMPTS, params)
        assert tuple(reply.body[TOKEN_IDS]) == assembly.plain(request)
        assert reply.counted == sum(chunk.tokens or 0 for chunk in reply.chunks) == request.params.max_new_tokens
        assert one.ended_s == one.sent_s + reply.seconds
        assert 0 < reply.chunks[0].seconds <= reply.chunks[-1].seconds == reply.seconds
        assert reply.prompt_tokens == len(PROMPTS[one.prompt])
    assert [one.late_s for one in closed.sent] == [0.0] * 6
    due = dict(zip((4, 0, 2), due_times(3, 300.0, 1), strict=True))
    for one in opened.sent:
        assert one.sent_s - one.late_s == pytest.approx(due[one.prompt])
        assert one.late_s >= 0
    steps = [len(engine.stats.steps) for engine in [queue.engine]]
    assert steps[0] >= 15, "one run for both blocks"


@given(st.integers(1, 300), st.integers(1, 60), st.integers(0, 9))
def test_requests_have_an_id_each_and_all_lengths_from_half_of_the_most_on(most: int, prompts: int, turn: int) -> None:
    """In the mean three quarters of the most, whichever prompts follow each other."""
    some = [[place] for place in range(prompts)]
    found = [queued_request(turn, place, some, replace(SHORT, max_new_tokens=most)) for place in range(prompts)]
    assert [request.id for request in found] == [*range(turn * prompts, (turn + 1) * prompts)]
    assert [list(request.prompt) for request in found] == some
    lengths = [request.params.max_new_tokens for request in found]
    assert all(most / 2 <= length <= most for length in lengths)
    for first in range(0, prompts - 7, 8):
        assert fmean(lengths[first : first + 8]) == pytest.approx(0.75 * most, abs=0.08 * most + 1)


def test_times_between_arrivals_are_waited_for(assemble: Make) -> None:
    """At a rate whose first gap is 60 ms nothing else is done meanwhile: the second request is not late by a step."""
    queue = ServedQueue(assemble().engine(None, max_rows=2), PROMPTS, replace(SHORT, max_new_tokens=1))
    rate = due_times(2, 1.0, 7)[1] / 0.06
    block = queue.block(BlockPlan("it", 0, 0, (0, 1), 7), Traffic(rate=rate))
    first, second = sorted(block.sent, key=lambda one: one.sent_s)
    assert second.sent_s >= 0.06
    assert first.ended_s < second.sent_s


class KnownLogits:
    """A judge whose model's logits are always these."""

    bound = 0.5
    choice, processed = staticmethod(Judge.choice), staticmethod(Judge.processed)

    def __init__(self, *logits: float) -> None:
        self._logits = torch.tensor(logits)

    def logits(self, prefix: Sequence[int]) -> torch.Tensor:
        return self._logits


@pytest.mark.parametrize(
    ("plain", "other", "index", "tie"),
    [((0, 1, 2), (0, 2, 2), 1, True), ((0, 1), (0, 0), 1, False), ((0, 1), (0,), 1, False), ((0,), (0, 2), 1, False)],
)
def test_an_output_is_plains_or_parts_from_it_at_a_tie(
    plain: tuple[int, ...], other: tuple[int, ...], index: int, tie: bool
) -> None:
    """By logits 1.5, 3.0 and 2.01 with a bound of 0.5: tokens 1 and 2 may be swapped, 0 is 1.5 below the largest."""
    judge: Any = KnownLogits(1.5, 3.0, 2.01)
    request = Request(0, (3,), SHORT)
    assert unequal_output(judge, 7, request, plain, plain) is None
    found = unequal_output(judge, 7, request, plain, other)
    assert found is not None
    assert (found.prompt, found.index, found.tie) == (7, index, tie)
    assert str(found).startswith("tie: prompt 7" if tie else "BUG: prompt 7")


def test_a_changed_token_is_a_bug_by_the_models_own_logits(assemble: Make) -> None:
    assembly = assemble()
    prompt = (5, 6, 7)
    for temperature in (0.0, 0.9):
        request = Request(4, prompt, replace(SHORT, temperature=temperature))
        output = assembly.plain(request)
        changed = (*output[:2], output[2] ^ 1, *output[3:])
        found = unequal_output(Judge(assembly.target, prompt), 0, request, output, changed)
        assert found is not None
        assert (found.index, found.tie) == (2, False)
        assert f"{output[2] ^ 1} from no logits within" in str(found)


SAMPLED_PARAMS = [
    {"temperature": 0.0},
    {"temperature": 0.7},
    {"temperature": 1.3, "top_k": 3},
    {"temperature": 1.0, "top_p": 0.7},
    {"temperature": 0.8, "min_p": 0.3},
]


@pytest.mark.parametrize("params", SAMPLED_PARAMS, ids=str)
def test_a_tie_is_every_token_that_logits_within_the_bound_give(params: dict[str, Any]) -> None:
    """Beside the draws from 100 random logits of five tokens within the bound of the judge's, for eight requests. No
    other token is a tie where no filter leaves tokens out: it is drawn where it is as high as the bound allows."""
    dice, ties = torch.Generator().manual_seed(3), 0
    for number in range(8):
        judge: Any = KnownLogits(*(2.0 * torch.rand(5, generator=dice)).tolist())
        request = Request(number, (3, number), SamplingParams(max_new_tokens=4, **params))
        logits, bound = judge.logits(()), judge.bound
        near = logits + bound * (2 * torch.rand(100, 5, generator=dice) - 1)
        drawn = {Judge.choice(one, request) for one in near}
        plain = Judge.choice(logits, request)
        for token in set(range(5)) - {plain}:
            found = unequal_output(judge, 0, request, (plain,), (token,))
            assert found is not None
            ends = logits - bound
            ends[token] += 2 * bound
            assert found.tie or token not in drawn
            assert len(params) == 2 or found.tie == (Judge.choice(ends, request) == token)
            ties += found.tie
    assert 0 < ties < 32


SETTING = Setting("tiny", "auto", "cpu", "auto", 1, "chat")
ARMS = [Arm(SETTING), Arm(SETTING, again=True), Arm(SETTING, "ngram", k=2), Arm(SETTING, "ngram", k=4)]
NAMES = ["plain", "plain again", "ngram/match/fixed/2", "ngram/match/fixed/4"]


def load_plan(*loads: Traffic, **more: Any) -> LoadPlan:
    texts = tuple(load_workload(name).first(4) for name in ("chat", "code_editing"))
    return LoadPlan(
        loads,
        texts,
        **{"sampling": SamplingParams(max_new_tokens=6), "rows": 2, "slo": Slo(ttft=0.5, e2e=60.0), **more},
    )


@pytest.fixture(scope="module")
def live_loads() -> LoadBench:
    """A short run over the tiny model: one and two requests at once, and arrivals."""
    loaded = catalog.load("tiny", torch.device("cpu"), torch.float32)
    plan = load_plan(Traffic(concurrency=1), Traffic(concurrency=2), Traffic(rate=60.0), rounds=1)
    bench = LoadBench("tiny", loaded, ArenaModel(loaded.model, registry().backend()), ARMS, plan)
    for load in plan.loads:
        assert [row.arm for row in bench.measure(load)] == NAMES
        assert bench.wrong(load) == {}
    return bench


def test_figures_are_those_of_the_records(live_loads: LoadBench) -> None:
    """From the JSON alone, by other formulas than the code's; the first arm is what ratios are over."""
    for one in json.loads(json.dumps(live_loads.as_json()))["loads"]:
        at_once, by_arm = one["load"]["concurrency"], dict[str, dict[int, float]]()
        for row in one["figures"]:
            blocks = [block for block in one["blocks"] if block["arm"] == row["arm"]]
            sent = [request for block in blocks for request in block["sent"]]
            served, ends = row["served"], [max(s["ended_s"] for s in block["sent"]) for block in blocks]
            spans = [end - min(s["sent_s"] for s in b["sent"]) for end, b in zip(ends, blocks, strict=True)]
            tokens = [sum(count for _, _, count in request["chunks"]) for request in sent]
            assert tokens == [request["usage"][1] for request in sent]
            assert served["tokens_per_s"] == pytest.approx(sum(tokens) / sum(spans))
            first = [request["chunks"][0][0] + request["late_s"] for request in sent]
            assert served["ttft_ms"][0] == pytest.approx(1e3 * median(first))
            last = [request["chunks"][-1][0] + request["late_s"] for request in sent]
            assert served["e2e_ms"][0] == pytest.approx(1e3 * median(last))
            each = [
                (r["chunks"][-1][0] - r["chunks"][0][0]) / sum(count for _, _, count in r["chunks"][1:])
                for r in sent
                if len(r["chunks"]) > 1
            ]
            assert served["tpot_ms"][0] == pytest.approx(1e3 * median(each))
            kept = sum(a <= 0.5 and b <= 60.0 for a, b in zip(first, last, strict=True)) - served["looping"]
            assert served["goodput"][1] * len(sent) >= kept - 1e-9
            by_arm[row["arm"]] = {
                block["group"]: busy_speed(block, at_once) if at_once else due_speed(block) for block in blocks
            }
            plain = by_arm["plain"]
            logs = [log(mine / plain[group]) for group, mine in by_arm[row["arm"]].items()]
            assert row["ratio"]["ratio"] == pytest.approx(exp(fmean(logs)))
            assert (row["equal"], row["of"]) == (len(sent), len(sent))


def busy_speed(block: dict[str, Any], at_once: int) -> float:
    """Tokens over what is in no step and what every emission takes on the line through the steps of all places, a
    slot of which costs 0 at least, and its part of the time at most."""
    sent, steps = block["sent"], block["steps"]
    emissions = sum(len(s["chunks"]) for s in sent)
    assert emissions == sum(rows for rows, *_ in steps)
    assert sum(s["usage"][1] for s in sent) == sum(tokens for _, _, tokens, *_ in steps)
    full, tail = ([step for step in steps if (step[0] == at_once) is taken] for taken in (True, False))
    widths, times = [step[1] / at_once for step in full], [ended - begun for *_, begun, ended in full]
    slope = float(np.polyfit(widths, times, 1)[0]) if len({*widths}) > 1 else 0.0
    slope = sorted((0.0, slope, fmean(times) / fmean(widths)))[1]
    each = fmean(times) + slope * (sum(slots for _, slots, *_ in steps) / emissions - fmean(widths))
    other = (tail[0][3] if tail else full[-1][4]) - sum(times)
    assert 0 <= other < steps[-1][4] <= max(s["ended_s"] for s in sent) + 0.1
    return float(sum(s["usage"][1] for s in sent) / (other + each * emissions / at_once))


def due_speed(block: dict[str, Any]) -> float:
    """The geometric mean of tokens per second from due to end."""
    return exp(fmean(log(s["usage"][1] / (s["seconds"] + s["late_s"])) for s in block["sent"]))


def test_plain_and_arms_alternate_over_equal_blocks(live_loads: LoadBench) -> None:
    """Each group goes to all arms before the next one, with the same prompts and arrivals."""
    for load, blocks in live_loads.blocks.items():
        for at in range(0, len(blocks), 4):
            some = blocks[at : at + 4]
            assert sorted(block.endpoint for block in some) == sorted(NAMES)
            assert len({block.group for block in some}) == 1
            assert len({frozenset(one.prompt for one in block.sent) for block in some}) == 1
            if load.concurrency:
                assert all(running_at_most(block.sent) <= load.concurrency for block in some)


def test_the_report_has_curves_first_then_a_section_for_each_load(live_loads: LoadBench) -> None:
    shown = "\n".join(terminal(load_document(live_loads, ["a card"])))
    titles = ["Ratio to plain, requests at once", "Ratio to plain, requests a second", "1 at once, ", "60 a second, "]
    places = [shown.index(title) for title in titles]
    assert places == sorted(places)
    assert shown.startswith("Load\n\na card")
    files = load_files("load", live_loads, ["a card"])
    assert [*files] == ["load.json", "load.md", "load.html"]
    titles = [f"Latency against throughput, requests {unit}" for unit in ("at once", "a second")]
    assert all(title in files["load.html"] for title in titles)


def test_a_point_on_a_curve_lies_between_its_loads_by_the_log() -> None:
    points = [(1, 0.0, 1.0), (4, 2.0, 3.0), (16, 2.0, 5.0)]
    assert [on_curve(points, at) for at in (1, 2, 4, 8, 16, 99)] == [
        *((0.0, 1.0), (1.0, 2.0), (2.0, 3.0)),
        *((2.0, 4.0), (2.0, 5.0), (2.0, 5.0)),
    ]


def test_an_output_that_is_not_plains_is_named(live_loads: LoadBench) -> None:
    """One token of one answer is changed: a line says which, unless the arm's policy promises no equal output."""
    load, name = Traffic(concurrency=2), NAMES[2]
    blocks = live_loads.blocks[load]
    place = next(n for n, block in enumerate(blocks) if block.endpoint == name)
    one = blocks[place].sent[0]
    assert one.reply is not None
    ids = [one.reply.body[TOKEN_IDS][0] ^ 1, *one.reply.body[TOKEN_IDS][1:]]
    changed = replace(one, reply=replace(one.reply, body={**one.reply.body, TOKEN_IDS: ids}))
    try:
        live_loads.blocks[load] = [*blocks]
        live_loads.blocks[load][place] = replace(blocks[place], sent=(changed, *blocks[place].sent[1:]))
        [[line]] = live_loads.wrong(load).values()
        assert line.startswith(f"{name}: BUG: prompt {one.prompt}, output token 0: plain ")
        row = live_loads.figures(load)[2]
        assert load_table(live_loads.figures(load), live_loads.wrong(load)).cells[2][5].text.endswith("x!")
        assert row.of - row.equal == 1
        assert line in "\n".join(load_document(live_loads, []).sections[4].parts[-1].lines)  # type: ignore[union-attr]
        live_loads.exact[name] = False
        assert live_loads.wrong(load) == {}
    finally:
        live_loads.blocks[load], live_loads.exact[name] = blocks, True


def test_loads_have_blocks_of_twice_as_many_requests_and_as_many_blocks_as_an_interval_needs(
    live_loads: LoadBench,
) -> None:
    one, two, rate = live_loads.plan.loads
    assert [live_loads.size(load) for load in (one, two, rate)] == [2, 4, 6]
    assert [len(live_loads.places(load)) for load in (one, two, rate)] == [8, 8, 8]
    planned_blocks = list(live_loads.planned(two))
    assert len(planned_blocks) == 4 * 2
    labels = [label for label, _ in live_loads.prompts]
    assert labels == ["chat", "code_editing"] * 4, "of every workload in turn"


def test_places_that_serve_no_second_prompt_are_refused() -> None:
    loaded = catalog.load("tiny", torch.device("cpu"), torch.float32)
    target = ArenaModel(loaded.model, registry().backend())
    with pytest.raises(SpecdecError, match="5 at once takes 9 different prompts, .* and there are 8: name more"):
        LoadBench("tiny", loaded, target, ARMS, load_plan(Traffic(concurrency=5)))


@pytest.mark.parametrize(
    ("arm", "said"),
    [
        ("ngram(kk=2)/match/fixed/4", "the draft 'ngram' does not take kk"),
        ("ngram/mtch/fixed/4", "unknown policy 'mtch'.*match"),
    ],
)
def test_a_strategy_that_does_not_exist_is_refused_in_a_line_before_anything_runs(arm: str, said: str) -> None:
    plugin = LoadPlugin(ALONE, requested(target="tiny", batch="1", arm=arm))
    with pytest.raises(pytest.fail.Exception, match=said) as refused:
        plugin.bench("tiny")
    assert not refused.value.pytrace


def test_dtypes_and_ways_of_sampling_have_benchmarks_of_their_own() -> None:
    """Of two dtypes and two temperatures there are four; one has the weights and the sampling of its name."""
    given = {"dtype": "float32,int8", "temperature": "0,0.8", "top_p": "0.9", "seed": "7", "draft": "ngram", "k": "2"}
    plugin = LoadPlugin(ALONE, requested(target="tiny", batch="2", prompts="4", workload="chat", **given))
    names = [f"tiny-dtype{dtype}-temperature{heat}" for dtype in ("float32", "int8") for heat in ("0.0", "0.8")]
    assert [*plugin.settings()] == names
    rounded, floats = (plugin.bench(name) for name in (names[3], names[0]))
    assert [bench.target.precision for bench in (rounded, floats)] == ["int8", "float32"]
    assert (rounded.params.temperature, rounded.params.top_p, rounded.params.seed) == (0.8, 0.9, 7)
    assert {arm.setting.sampling for arm in rounded.arms.values()} == {rounded.plan.sampling}
    told = rounded.as_json()
    assert (told["target"], told["dtype"], told["sampling"]["temperature"]) == ("tiny", "int8", 0.8)


def test_sampled_outputs_are_plains_and_of_a_policy_that_promises_less_a_line_says_so() -> None:
    setting = Setting("tiny", "auto", "cpu", "auto", 1, "chat", SamplingParams(max_new_tokens=12, temperature=0.9))
    ours = [Arm(setting, "ngram", k=4), Arm(setting, "garbage", "rejection", k=4)]
    arms = [Arm(setting), Arm(setting, again=True), *ours]
    load = Traffic(concurrency=2)
    loaded = catalog.load("tiny", torch.device("cpu"), torch.float32)
    target = ArenaModel(loaded.model, registry().backend())
    bench = LoadBench("tiny", loaded, target, arms, load_plan(load, sampling=setting.sampling, rounds=2))
    plain, again, match, rejection = bench.measure(load)
    assert [row.equal for row in (again, match)] == [plain.of] * 2
    assert rejection.equal < plain.of, "its noise is not plain's"
    assert bench.wrong(load) == {}
    outputs = token_ids_of([block for block in bench.blocks[load] if block.endpoint == "plain"])
    assert any(outputs[0, place] != outputs[1, place] for place in range(8)), "each round has noise of its own"
    shown = "\n".join(terminal(load_document(bench, [])))
    assert "garbage: its policy does not promise plain's tokens" in " ".join(shown.split())


def test_a_load_that_a_file_holds_is_the_one_that_was_measured(live_loads: LoadBench) -> None:
    for load, blocks in live_loads.blocks.items():
        measured = MeasuredLoad(load, live_loads.exact, blocks)
        assert MeasuredLoad.from_json(json.loads(json.dumps(measured.as_json()))) == measured


def test_a_run_that_ended_early_goes_on_with_the_loads_that_are_missing(tmp_path: Path) -> None:
    """Of two dtypes and two loads one load was measured; a second process has it, and measures the rest."""
    given = {"target": "tiny", "dtype": "float32,int8", "batch": "1,2", "prompts": "2", "max_new_tokens": "4"}
    given |= {"workload": "chat,json", "draft": "ngram", "k": "2", "results": str(tmp_path), "pairs": "2"}
    session: Any = SimpleNamespace(exitstatus=0)
    first = LoadPlugin(ALONE, requested(**given))
    bench = first.bench("tiny-dtypeint8")
    before = bench.measure(Traffic(concurrency=2))
    with pytest.raises(SpecdecError, match="is writing its results into"):
        LoadJournal.resume(tmp_path, "load", manifest(first.request.texts))
    first.pytest_sessionfinish(session, 2)
    [folder] = tmp_path.iterdir()
    assert not LoadJournal.load(tmp_path).said["complete"]

    later = LoadPlugin(ALONE, requested(**given, resume="true"))
    for name in later.settings():
        bench = later.bench(name)
        for load in bench.plan.loads:
            found = bench.measure(load)
            if (name, load) == ("tiny-dtypeint8", Traffic(concurrency=2)):
                assert [row.served for row in found] == [row.served for row in before]
                assert all(bench.exact.values())
    assert "resumed: 1 of 2 loads were there" in later.card
    later.pytest_sessionfinish(session, 0)
    assert [*tmp_path.iterdir()] == [folder]
    said, dtypes = LoadJournal.load(folder).said, ("float32", "int8")
    assert said["complete"]
    assert {*said["sha256"]} == {f"load-tiny-dtype{dtype}.{end}" for dtype in dtypes for end in ("json", "md", "html")}
    assert len([*(folder / "loads").iterdir()]) == 4
    with pytest.raises(SpecdecError, match="--specdec-k: 2 there, 3 here"):
        LoadJournal.resume(tmp_path, "load", manifest(requested(**{**given, "k": "3"}).texts))
    with pytest.raises(SpecdecError, match="is not of the format specdec-results"):
        Journal.load(folder)


def test_a_run_that_measured_no_load_leaves_no_folder(tmp_path: Path) -> None:
    given = {"target": "tiny", "batch": "1", "prompts": "1", "workload": "chat", "draft": "ngram"}
    given["results"] = str(tmp_path)
    plugin, session = LoadPlugin(ALONE, requested(**given)), SimpleNamespace(exitstatus=0)
    plugin.bench("tiny")
    assert len([*tmp_path.iterdir()]) == 1
    plugin.pytest_sessionfinish(session, 0)  # type: ignore[arg-type]
    assert [*tmp_path.iterdir()] == []
