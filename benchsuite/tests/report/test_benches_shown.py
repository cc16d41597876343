"""Kernels, decoding, endpoints and advice as tables and files: every figure in its unit, under its header."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from math import log
from pathlib import Path
from typing import Any

import pytest
import torch

from benchsuite.benches.decoding.bench import DecodingBench
from benchsuite.benches.decoding.ratios import Contrast, Ratio
from benchsuite.benches.kernels.caches import WIDTH, CacheCost
from benchsuite.benches.kernels.depths import DepthCost
from benchsuite.benches.kernels.timing import Curve, KernelBench, Timing
from benchsuite.benches.serving.bench import AGAIN, ServingBench, ServingPlan
from benchsuite.benches.serving.certificate import Certificate, UnsteadyPlain
from benchsuite.benches.serving.figures import EndpointFigures, endpoint_figures
from benchsuite.benches.serving.load import Sent, ServedBlock, Traffic
from benchsuite.benches.serving.self_reported import SelfReported
from benchsuite.machine.roofline import Peak
from benchsuite.measure.arms import Arm
from benchsuite.measure.interval import Estimate
from benchsuite.predict.advisor import CLOSE, Advice, TriedArm
from benchsuite.report import decoding, kernels, serving
from benchsuite.report.advice import advice_document
from benchsuite.report.document import Code, Document
from benchsuite.report.renderers import markdown, picture, terminal
from benchsuite.tests.report.made import lines_shown, plots_of, tables_of, texts_of_table
from benchsuite.tests.rig import SETTING
from specdec import catalog
from specdec.model import ArenaModel
from specdec.ops import Ops
from specdec_kernels.reference import Reference
from specdec_plugins.endpoints.client import Ask
from specdec_plugins.endpoints.named import Endpoint
from specdec_plugins.endpoints.replies import Chunk, Reply

TIMINGS = [
    Timing("linear", "int8", "W=4", "cpu", 12.345e-6, 45678, 9, 0.876, 2.345),
    Timing("linear", "int8", "W=4", "reference", 30e-6, 45678, 9, 0.5, 1.0),
    Timing("linear", "int8", "W=5", "cpu", 12.345e-6, 45678, 9, 0.876, 2.345),
    Timing("linear", "int8", "W=512", "cpu", 1234.5e-6, 1e6, 9, 0.876, None),  # type: ignore[arg-type]
    Timing("sample", "float32", "W=5", "reference", 1e-6, 500, 9, 1.25, None),
    Timing("sample", "float32", "W=6", "cpu", 1e-6, 500, 9, 1.25, 1.5),
    Timing("sample", "int8", "W=6", "reference", 1e-6, 500, 9, 1.25, 1.0),
]
SHOWN_TIMINGS = [
    ("linear", "int8", "W=4", "cpu", "12.3", "45.7", "0.88", "2.35"),
    ("linear", "int8", "W=512", "cpu", "1,234.5", "1,000.0", "0.88", "-"),
    ("sample", "float32", "W=5", "reference", "1.0", "0.5", "1.25", "-"),
    ("sample", "float32", "W=6", "cpu", "1.0", "0.5", "1.25", "1.50"),
    ("sample", "int8", "W=6", "reference", "1.0", "0.5", "1.25", "-"),
]
CURVES = [
    Curve("linear int8, cpu", {1: 2e-3, 4: 3e-3, 16: 9e-3, 64: 0.1}, 0.456),
    Curve("model, cpu", {1: 0.01234, 2: 0.02468}, 1.5),
]
COSTS = [CacheCost("arena", 2048, 0.12345, 0.2, 2500, 3)]

DEPTHS = [
    DepthCost("attention", 16_384, 4, 0.012345, 0.025, Estimate(2.0249, 1.9, 2.1501, 7, "t")),
    DepthCost("step", 128, 1, 0.001, 0.002, Estimate(2.0, None, None, 5, "none")),
]


@pytest.fixture(scope="module")
def kernel_bench() -> KernelBench:
    """A benchmark of kernels on a tiny target, with figures that are made up."""
    loaded = catalog.load("tiny", torch.device("cpu"), torch.float32)
    return KernelBench("org/tiny", ArenaModel(loaded.model, Ops([Reference()])))


def with_figures(bench: KernelBench, **figures: Any) -> KernelBench:
    """The benchmark with these figures, and no others."""
    bench.peak = Peak(12.34e9, 567.8e9)
    for name in ("timings", "curves", "costs", "depths"):
        setattr(bench, name, figures.get(name, []))
    return bench


def sections_by_title(document: Document) -> dict[str, Any]:
    """The sections of a document that hold something, by their titles."""
    return {section.title: section for section in document.sections if section.parts}


@pytest.mark.slow
def test_kernels_are_shown_in_microseconds_and_the_reference_where_nothing_else_ran(kernel_bench: KernelBench) -> None:
    """Of the linear op the widths that a step has, of other ops every shape."""
    document = kernels.kernels_document(with_figures(kernel_bench, timings=TIMINGS), ["a card"])
    found = sections_by_title(document)
    assert document.title == "Kernels"
    assert list(found) == [""], "without curves and caches there is no section of theirs"
    [table] = tables_of(kernels.kernels_document(kernel_bench, []))
    headers = ("op", "dtype", "shape", "backend", "time us", "moved kB", "of limit", "x reference")
    assert texts_of_table(table) == [dict(zip(headers, row, strict=True)) for row in SHOWN_TIMINGS]
    lines = lines_shown(kernels.kernels_document(kernel_bench, ["a card"]))
    assert lines[:2] == ["a card", "machine's limits, measured: 12.3 GB/s read, 568 Gflop/s in float32"]
    assert {line.partition(":")[0] for line in lines[2:]} == {"time", "x reference"}


def test_the_widths_of_both_tables_are_those_that_steps_have_and_some_wider_ones() -> None:
    every = kernels.timings_table([replace(TIMINGS[0], shape=f"W={width}") for width in range(1, 600)])
    widths = [f"W={width}" for width in (1, 2, 4, 8, 9, 12, 16, 32, 64, 256, 512)]
    assert [row["shape"] for row in texts_of_table(every)] == kernels.curves_table([]).headers[3:] == widths


@pytest.mark.slow
def test_curves_are_shown_over_one_row_and_drawn_inside_their_frame(kernel_bench: KernelBench) -> None:
    """In milliseconds at one row; a point above four is drawn at four, one wider than 32 is not drawn."""
    found = sections_by_title(kernels.kernels_document(with_figures(kernel_bench, curves=CURVES), []))
    [table] = tables_of(found["v(W)"])
    int8, model = texts_of_table(table)
    expected = {"v(W)": "linear int8, cpu", "ms at 1": "2.00", "of torch": "0.46", "W=1": "1.00", "W=4": "1.50"}
    expected |= {"W=16": "4.50", "W=64": "50.00"}
    assert int8 == {header: expected.get(header, "-") for header in table.headers}
    assert (model["ms at 1"], model["of torch"], model["W=2"], model["W=4"]) == ("12.34", "1.50", "2.00", "-")
    [plot] = plots_of(found["v(W)"])
    assert [(trace.name, trace.points, trace.number, trace.joined) for trace in plot.traces] == [
        ("linear int8, cpu", [(1.0, 1.0), (4.0, 1.5), (16.0, 4.0)], 0, True),
        ("model, cpu", [(1.0, 1.0), (2.0, 2.0)], 1, True),
    ]
    assert (plot.level, plot.whole, plot.y) == ((1.0, "free"), True, "v(W)")
    edge = kernels.plot([Curve("c", {33: 2.0, 32: 4.0, 1: 1.0}, 1.0)])
    assert edge.traces[0].points == [(1.0, 1.0), (32.0, 4.0)]


def test_caches_are_shown_part_by_part_with_what_they_move(kernel_bench: KernelBench) -> None:
    document = kernels.kernels_document(with_figures(kernel_bench, costs=COSTS), [])
    [table] = tables_of(document)
    assert texts_of_table(table) == [
        {
            **{"context": "2,048", "cache": "arena", "append ms": "0.123", "roll back ms": "0.200"},
            **{"moved kB": "2.5", "allocations": "3"},
        }
    ]
    [title] = [title for title in sections_by_title(document) if title]
    assert f"{WIDTH} slots" in title


def test_depths_are_shown_with_the_gain_and_its_interval(kernel_bench: KernelBench) -> None:
    document = kernels.kernels_document(with_figures(kernel_bench, depths=DEPTHS), [])
    [table] = tables_of(document)
    assert [tuple(row.values()) for row in texts_of_table(table)] == [
        ("16,384", "4", "attention", "12.35", "25.00", "2.02", "1.90-2.15"),
        ("128", "1", "step", "1.00", "2.00", "2.00", "-"),
    ]


@pytest.mark.parametrize("complete", [True, False])
def test_a_folder_of_kernels_has_the_document_the_figures_and_the_plot(
    complete: bool, kernel_bench: KernelBench, tmp_path: Path
) -> None:
    bench = with_figures(kernel_bench, timings=TIMINGS, curves=CURVES, costs=COSTS, depths=DEPTHS)
    folder = kernels.write_kernels(tmp_path, bench, ["a card"], 7, complete)
    assert folder.name.endswith("-kernels-tiny")
    assert (folder / "kernels.md").read_text() == markdown(kernels.kernels_document(bench, ["a card"]))
    assert (folder / "v_of_w.svg").read_text() == picture(kernels.plot(CURVES))
    found = json.loads((folder / "kernels.json").read_text())
    assert found["caches"] == [asdict(cost) for cost in COSTS]
    assert found["depths"] == [asdict(cost) for cost in DEPTHS]
    assert found["timings"] == [asdict(timing) for timing in TIMINGS]
    made = json.loads((folder / "MANIFEST.json").read_text())
    assert (made["seed"], made["complete"], made["machine"]["card"]) == (7, complete, ["a card"])


def ratio(unit: str, ours: tuple[float, ...], base: tuple[float, ...]) -> Ratio:
    """A row of decoding."""
    return Ratio(Contrast("fast", "slow", "figure", unit), ours, base, (12345, 678))


def test_decoding_is_shown_by_medians_and_by_the_ratio_of_every_round() -> None:
    """A share is written as a percentage; the smallest and the largest pair stand apart from the interval."""
    few = ratio("% of a step", (0.2, 0.1, 0.3), (0.1, 0.1, 0.1))
    many = ratio("tokens/s", (20.0, 21.0, 22.0, 23.0, 24.0, 25.0), (10.0,) * 6)
    found = texts_of_table(decoding.ratios_table([few, many]))
    over = many.estimate
    assert found == [
        {
            **{"arm": "fast", "over": "slow", "unit": "% of a step", "figure": "20.0", "over's": "10.0"},
            **{"ratio": f"{6 ** (1 / 3):.2f}", "interval": "-", "pairs": "1.00-3.00", "n": "3"},
            "tokens": "12,345 + 678",
        },
        {
            **{"arm": "fast", "over": "slow", "unit": "tokens/s", "figure": "22.5", "over's": "10.0"},
            **{"ratio": "2.24", "interval": f"{over.low:.2f}-{over.high:.2f}", "pairs": "2.00-2.50", "n": "6"},
            "tokens": "12,345 + 678",
        },
    ]


@pytest.mark.parametrize("complete", [True, False])
def test_a_folder_of_decoding_has_the_document_and_the_figures(complete: bool, tmp_path: Path) -> None:
    loaded = catalog.load("tiny", torch.device("cpu"), torch.float32)
    bench = DecodingBench("org/tiny", loaded, ArenaModel(loaded.model, Reference()), seed=5)
    nothing = decoding.decoding_document(bench, ["a card"])
    assert (nothing.title, lines_shown(nothing), tables_of(nothing)) == ("Decoding", ["a card"], [])
    bench.ratios, bench.legend = [ratio("s", (2.0,) * 6, (1.0,) * 6)], ["what it is"]
    document = decoding.decoding_document(bench, ["a card"])
    assert lines_shown(document) == ["a card", *decoding.COLUMNS, "what it is"]
    folder = decoding.write_decoding(tmp_path, bench, ["a card"], complete)
    assert folder.name.endswith("-decoding-tiny")
    assert (folder / "decoding.md").read_text() == markdown(document)
    assert json.loads((folder / "decoding.json").read_text())["rows"][0]["ratio"] == 2.0
    made = json.loads((folder / "MANIFEST.json").read_text())
    assert (made["seed"], made["complete"], made["machine"]["card"]) == (5, complete, ["a card"])


def served_figures(name: str, **figures: Any) -> EndpointFigures:
    """The figures of one endpoint."""
    [nothing] = endpoint_figures([], [name], [], None)
    return replace(nothing, **{"why": "", **figures})


def test_endpoints_are_shown_by_speed_and_by_latency_of_requests_and_of_pieces() -> None:
    """Milliseconds have a decimal below a hundred; what is not known is a dash."""
    row = served_figures(
        "spec",
        asked=10,
        failed={"timeout": 1, "refused": 2},
        ttft_ms=(99.94, 100.0, 12345.6),
        tpot_ms=(1.23, None, 3.45),
        e2e_ms=(7.0, 8.0, 9.0),
        piece_ms=(0.1, 0.2, 0.3),
        token_ms=(0.4, 0.5, None),
        tokens_per_s=123.45,
        goodput=(1.234, 0.876),
        rate=2.345,
        speed=Estimate(1.5, 1.4, 1.6, 8, "t"),
        decoding=Estimate(1.25, None, None, 3, "t"),
    )
    first = served_figures("plain", speed=Estimate(1.0, 1.0, 1.0, 8, "t"), decoding=Estimate(1.0, 0.9, 1.1, 8, "t"))
    speeds, requests, pieces = serving.serving_tables([first, row, served_figures("dead", asked=2)])
    assert texts_of_table(speeds) == [
        {
            **{"endpoint": "plain", "ok": "0/0", "speed": "1.00x", "interval": "1.00-1.00", "decoding": "1.00x"},
            **{"tok/s": "-", "req/s": "0.00", "goodput": "-"},
        },
        {
            **{"endpoint": "spec", "ok": "7/10", "speed": "1.50x", "interval": "1.40-1.60", "decoding": "1.25x?"},
            **{"tok/s": "123.5", "req/s": "2.35", "goodput": "1.23/s, 88%"},
        },
        {
            **{"endpoint": "dead", "ok": "2/2", "speed": "-", "interval": "-", "decoding": "-"},
            **{"tok/s": "-", "req/s": "0.00", "goodput": "-"},
        },
    ]
    assert requests.headers == ["endpoint", "TTFT 50", "90", "99", "TPOT 50", "90", "99", "e2e 50", "90", "99"]
    assert [[*cells] for cells in requests.rows] == [
        ["plain", *["-"] * 9],
        ["spec", "99.9", "100", "12346", "1.2", "-", "3.5", "7.0", "8.0", "9.0"],
        ["dead", *["-"] * 9],
    ]
    assert pieces.headers == ["endpoint", "gap 50", "90", "99", "token 50", "90", "99"]
    assert [*pieces.rows[1]] == ["spec", "0.1", "0.2", "0.3", "0.4", "0.5", "-"]


@pytest.mark.parametrize(("noise", "mark"), [(1.04, ""), (1.06, "~")])
def test_the_first_endpoint_once_more_is_the_noise_of_both_speeds(noise: float, mark: str) -> None:
    """Each of its own kind: the noise of decoding marks no speed over the whole, nor the other way about."""
    sure, quiet = Estimate(1.05, 1.045, 1.055, 8, "t"), Estimate(1.0, 1.0, 1.0, 8, "t")
    rows = [served_figures("a", speed=quiet, decoding=quiet), served_figures("b", speed=sure, decoding=sure)]
    loud = Estimate(noise, noise, noise, 8, "t")
    for given, marks in (({"speed": loud}, (mark, "")), ({"decoding": loud}, ("", mark))):
        again = served_figures(f"a{AGAIN}", **{"speed": quiet, "decoding": quiet, **given})
        shown = texts_of_table(serving.serving_tables([rows[0], again, rows[1]])[0])[2]
        assert (shown["speed"], shown["decoding"]) == (f"1.05x{marks[0]}", f"1.05x{marks[1]}")
    alone = texts_of_table(serving.serving_tables(rows)[0])[1]
    assert (alone["speed"], alone["decoding"]) == ("1.05x", "1.05x")


def test_below_the_tables_of_endpoints_stands_what_failed_was_retried_learnt_or_decides_nothing() -> None:
    rows = [
        served_figures("fine", asked=9),
        served_figures(
            "bad", asked=9, failed={"refused": 2, "timeout": 1}, retried=3, learns=1.234, why="3 of 9 at once"
        ),
        served_figures("again", asked=4, retried=1),
        served_figures("poor", asked=9, failed={"reset": 2}, empty=1, looping=3, reason="lengths: apart"),
        served_figures("loops", asked=9, looping=2),
    ]
    learnt = "bad: prompts that it had answered before were decoded 1.23 times as fast: it keeps what requests teach"
    failed, learns, why, retried, *poor = serving.endpoint_notes(rows)
    assert failed == "bad: of 9 requests 2 refused, 1 timeout, 3 answered after a retry, not timed"
    assert learns.startswith(learnt)
    assert why == "bad: INCONCLUSIVE: 3 of 9 at once; nothing is said of its speed"
    assert retried == "again: of 4 requests 1 answered after a retry, not timed"
    less = "these keep no limit and count for no speed"
    assert poor == [
        "poor: of 9 requests 2 reset",
        f"poor: of 7 answers 1 without a text, 3 one piece again and again to the end: {less}",
        "poor: !: not comparable: lengths: apart",
        f"loops: of 9 answers 2 one piece again and again to the end: {less}",
    ]


def test_a_served_speed_that_cannot_be_compared_is_marked() -> None:
    speed = Estimate(2.0, 1.9, 2.1, 8, "t")
    rows = [
        served_figures("a", speed=speed, decoding=speed),
        served_figures("b", speed=speed, decoding=speed, reason="lengths: apart"),
    ]
    shown = texts_of_table(serving.serving_tables(rows)[0])[1]
    assert (shown["speed"], shown["decoding"]) == ("2.00x!", "2.00x!")


def answer(prompt: int, seconds: float) -> Sent:
    """An answer of four tokens in two pieces."""
    chunks = (Chunk(seconds / 2, "x", 2), Chunk(seconds, "y", 2))
    return Sent(prompt, 0.0, seconds, Reply("xy", (), chunks, seconds, 3, 4, "length", 1, {}))


def serving_bench() -> ServingBench:
    """A benchmark of two endpoints under two loads, with two prompts; the second endpoint is twice as fast."""
    ends = tuple(Endpoint(name, f"http://{name}", "m") for name in ("a", "b"))
    plan = ServingPlan(ends, (("chat", "p"), ("chat", "q")), Ask("", 8), rounds=2, seed=3)
    bench = ServingBench(plan)
    bench.said = ["about a"]
    for load, rounds in ((Traffic(concurrency=4), 2), (Traffic(rate=2.5), 1)):
        bench.blocks[load] = [
            ServedBlock(name, turn, tuple(answer(prompt, seconds) for prompt in range(2)))
            for name, seconds in (("a", 1.0), ("a again", 1.0), ("b", 0.5))
            for turn in range(rounds)
        ]
    bench.self_reported[Traffic(rate=2.5)] = {"b": SelfReported(None, None, "no page")}
    return bench


@pytest.mark.parametrize(("chat", "text", "told"), [(False, "", True), (False, "xy", False), (True, "", False)])
def test_below_empty_answers_to_raw_prompts_stands_how_a_model_of_chats_is_asked(
    chat: bool, text: str, told: bool
) -> None:
    bench = serving_bench()
    bench.plan = replace(bench.plan, ask=Ask("", 8, chat=chat))
    for load, blocks in bench.blocks.items():
        bench.blocks[load] = [
            replace(one, sent=tuple(replace(s, reply=s.reply and replace(s.reply, text=text)) for s in one.sent))
            for one in blocks
        ]
    lines = lines_shown(serving.serving_document(bench))
    assert any("--specdec-endpoint-api chat" in line for line in lines) is told


def test_each_load_has_a_section_with_its_size_and_what_servers_say_of_themselves() -> None:
    bench = serving_bench()
    document = serving.serving_document(bench)
    assert document.title == "Endpoints"
    found = sections_by_title(document)
    size = "2 prompts in 1 group, {}, at most 8 tokens each"
    loads = [f"4 at once, {size.format('2 rounds')}", f"2.5 a second, {size.format('1 round')}"]
    assert list(found) == ["", *loads, "Columns"]
    assert lines_shown(found[""]) == [f"every request says {bench.plan.ask.sampling}", "about a"]
    assert lines_shown(found[loads[0]]) == [serving.NO_INTERVAL]
    own = bench.self_reported[Traffic(rate=2.5)]["b"].lines("b")
    assert lines_shown(found[loads[1]]) == [serving.NO_INTERVAL, *own]
    assert own
    assert lines_shown(found["Columns"]) == list(serving.COLUMNS)
    for load in loads:
        tables = tables_of(found[load])
        assert len(tables) == 3
        assert [row["speed"] for row in texts_of_table(tables[0])] == ["1.00x", "1.00x?", "2.00x?"]
    assert list(sections_by_title(serving.serving_document(ServingBench(bench.plan)))) == [""]


@pytest.mark.parametrize("complete", [True, False])
def test_a_folder_of_endpoints_has_the_document_and_what_was_asked_and_answered(complete: bool, tmp_path: Path) -> None:
    bench = serving_bench()
    bench.certificates = [Certificate("b", UnsteadyPlain("a"), ("a detail",)), Certificate("c", UnsteadyPlain("a"))]
    document = serving.serving_document(bench)
    said = [line for one in bench.certificates for line in one.lines]
    assert lines_shown(sections_by_title(document)["Outputs"]) == said
    folder = serving.write_serving(tmp_path, bench, complete)
    assert folder.name.endswith("-serving-a-b")
    assert (folder / "serving.md").read_text() == markdown(document)
    assert len(json.loads((folder / "serving.json").read_text())["loads"]) == 2
    made = json.loads((folder / "MANIFEST.json").read_text())
    assert (made["seed"], made["complete"], made["machine"]["card"]) == (3, complete, ["about a"])


def advice(speedup: float, **changed: Any) -> Advice:
    """Advice for one batch, from eight strategies that were tried."""
    setting = SETTING.replaced(batch=2)
    arms = [Arm(setting, "ngram", "match", "adaptive", k) for k in range(1, 9)]
    tried = [TriedArm(arm, log(1.5 - place / 10), log(1.6 - place / 10), place) for place, arm in enumerate(arms)]
    return replace(Advice(arms[0], speedup, 1.345, 1.789, 0.876, tried, 59.6, 123), **changed)


def test_advice_is_the_first_strategies_that_were_tried_a_sentence_and_the_command_that_measures_it() -> None:
    advices = [advice(1.567), advice(0.987)]
    document = advice_document(advices)
    first, second = document.sections
    assert first.title == "chat, 123 tokens of context, batch 2: the first 6 of 8 strategies"
    [table] = tables_of(first)
    assert texts_of_table(table) == [
        {
            **{"draft": "ngram", "policy": "match", "controller": "adaptive", "K": str(k)},
            **{"predicted": f"{1.6 - k / 10:.2f}x", "runs": str(k - 1), "expected": f"{1.7 - k / 10:.2f}x"},
        }
        for k in range(1, 7)
    ]
    assert lines_shown(first) == [
        "advice: ngram/match/adaptive/1, 1.57x plain (1.34 to 1.79 with 90 %); at least "
        f"{CLOSE:g} of the best one's speed with probability 0.88, after 60 s"
    ]
    assert lines_shown(second) == [
        "no strategy is faster than plain decoding; the best, ngram/match/adaptive/1, has 0.99x, after 60 s"
    ]
    assert [part.text for part in first.parts if isinstance(part, Code)] == [advices[0].command]
    assert advices[0].command in terminal(document)
    assert lines_shown(advice_document([advice(1.0)]))[0].startswith("advice: ")
    few = advice(1.5, tried=advice(1.5).tried[:2])
    assert advice_document([few]).sections[0].title.endswith("the first 2 of 2 strategies")
