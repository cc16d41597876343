"""The tables of a run: each figure stands under its header, in its unit, beside what may be said of it."""

from __future__ import annotations

import csv
from dataclasses import replace
from typing import Any

import pytest

from benchsuite.measure.arms import Arm
from benchsuite.measure.figures import KEYS
from benchsuite.measure.interval import Estimate
from benchsuite.measure.rows import Row, Text
from benchsuite.measure.verdict import MARKS, SpeedVerdict
from benchsuite.report import tables
from benchsuite.report.document import Document, Section, TableCell
from benchsuite.report.renderers import markdown, section_lines
from benchsuite.tests.report.made import AGAIN, NGRAM, PEER, PLAIN, everywhere, made_row, texts_of_table
from benchsuite.tests.rig import SETTING

FIGURES: dict[str, Any] = {
    **{"tokens_per_s": 12.34, "units": 8, "e2e_s": 3.456, "e2e_speedup": 1.104, "contract_checked": "8/8"},
    **{"ttft_ms": 123.6, "ttft_draft_ms": 4.56, "tpot_ms": 7.89, "set_up_s": 0.987},
    **{"itl_p50_ms": 1.23, "itl_p90_ms": 2.34, "itl_p99_ms": 3.46},
    **{"tau": 2.345, "mean_acceptance_length": 3.456, "acceptance_rate": 0.634, "draft_cost": 0.1234},
    **{"verify_cost": 1.567, "sum_of_parts": 1.789, "draft_share": 0.1234, "target_share": 0.5678},
    **{"accept_share": 0.0345, "commit_share": 0.0123, "control_share": 0.0456, "overhead": 0.2164, "mbu": 0.456},
}
SHOWN = [
    {
        **{"arm": "ngram", "policy K": "match 4", "tok/s": "12.3", "speedup": "1.26x", "interval": "1.14-1.38"},
        **{"verdict": "faster", "n": "8", "e2e s": "3.46", "e2e": "1.10x"},
    },
    {
        **{"arm": "ngram", "contract": "exact: 8/8", "TTFT ms": "124", "draft": "4.6", "TPOT ms": "7.9"},
        **{"ITL 50": "1.2", "90": "2.3", "99": "3.5", "set-up s": "0.99"},
    },
    {
        **{"arm": "ngram", "tau": "2.35", "acc len": "3.46", "acc %": "63", "c": "0.123", "v(W)": "1.57"},
        "parts": "1.79x",
    },
    {
        **{"arm": "ngram", "draft %": "12.3", "target %": "56.8", "policy %": "3.5", "commit %": "1.2"},
        **{"control %": "4.6", "overhead %": "21.6", "MBU": "0.46"},
    },
]
COLUMNS = (tables.SPEED, tables.LATENCY, tables.REASONS, tables.SHARES)


def shown_cells(row: Row) -> dict[str, str]:
    """The texts of a row in all tables together, by their headers."""
    found = [texts_of_table(tables.rows_table([row], columns))[0] for columns in COLUMNS]
    return {header: text for one in found for header, text in one.items()}


def test_every_figure_of_a_row_stands_under_its_header_in_its_unit() -> None:
    """Each a value of its own, so that no two can be exchanged: milliseconds, seconds, shares as percents, factors."""
    row = made_row(NGRAM, 1.256, 0.1, **FIGURES)
    assert [texts_of_table(tables.rows_table([row], columns))[0] for columns in COLUMNS] == SHOWN


def test_what_is_not_known_is_a_dash_and_no_number() -> None:
    """Of a row without any figure its name, its policy and its contract stand alone."""
    known = {"arm": "ngram", "policy K": "match 4", "verdict": "too few", "contract": "exact: not compared"}
    assert shown_cells(made_row(NGRAM)) == {header: known.get(header, "-") for shown in SHOWN for header in shown}


@pytest.mark.parametrize("part", ["draft", "target", "accept", "commit", "control"])
def test_whatever_takes_the_time_the_shares_that_are_shown_add_up_to_all_of_it(part: str) -> None:
    """Half of the time goes to one part, a tenth to each other one, and a tenth to none of them."""
    shares: dict[str, Any] = {
        f"{one}_share": 0.5 if one == part else 0.1 for one in ("draft", "target", "accept", "commit", "control")
    }
    [shown] = texts_of_table(tables.rows_table([made_row(NGRAM, **shares, overhead=0.1)], tables.SHARES))
    assert sum(float(text) for header, text in shown.items() if header.endswith("%")) == pytest.approx(100)


@pytest.mark.parametrize("share", [-0.0004, 0.0, 0.0004])
def test_a_share_that_rounds_to_nothing_has_no_sign(share: float) -> None:
    assert shown_cells(made_row(NGRAM, overhead=share))["overhead %"] == "0.0"
    assert shown_cells(made_row(NGRAM, overhead=-0.123))["overhead %"] == "-12.3"


@pytest.mark.parametrize(
    ("row", "name", "full", "strategy"),
    [
        (made_row(PLAIN), "plain *", "plain", "-"),
        (made_row(AGAIN), "plain again", "plain again", "-"),
        (made_row(NGRAM), "ngram", "ngram, match 4", "match 4"),
        (made_row(replace(NGRAM, name="mine")), "mine", "mine", "match 4"),
        (made_row(replace(NGRAM, policy="block", controller="adaptive(x=2)", k=None)), *["ngram"] * 2, ""),
        (made_row(replace(NGRAM, controller="goodput", k=8)), "ngram", "ngram, match goodput 8", "match goodput 8"),
        (made_row(PEER), *["transformers prompt lookup"] * 2, "k=3"),
        (made_row(replace(PEER, peer="transformers")), *["transformers"] * 2, "-"),
    ],
)
def test_a_row_is_named_by_its_label_and_in_sentences_with_its_policy_and_k(
    row: Row, name: str, full: str, strategy: str
) -> None:
    """A name of the user's own says it all; the baseline of speedups has a star."""
    if row.arm.policy == "block":
        full, strategy = "ngram, block adaptive", "block adaptive"
    assert (shown_cells(row)["arm"], tables.full_name(row), shown_cells(row)["policy K"]) == (name, full, strategy)


@pytest.mark.parametrize(
    ("row", "shown"),
    [
        (made_row(PLAIN, 1.0, 0.0, contract_checked="baseline"), ("1.00x", "-", "baseline", "baseline")),
        (made_row(NGRAM, 1.5, 0.1), ("1.50x", "1.36-1.65", "faster", "exact: not compared")),
        (made_row(NGRAM, 0.8, 0.1), ("0.80x", "0.73-0.88", "slower", "exact: not compared")),
        (made_row(NGRAM, 1.05, 0.1), ("1.05x", "0.95-1.16", "~", "exact: not compared")),
        (made_row(NGRAM, 1.5), ("1.50x", "-", "too few", "exact: not compared")),
        (made_row(NGRAM, speedup_low=1.4), ("-", "-", "too few", "exact: not compared")),
        (made_row(NGRAM, 1.5, 0.1, reason="r"), ("1.50x", "1.36-1.65", "not comparable", "exact: not compared")),
        (
            made_row(NGRAM, failure="it differs", contract="lossy", contract_checked="FAILED: 1/2"),
            ("FAILED", "-", "FAILED", "lossy: FAILED: 1/2"),
        ),
        (
            made_row(NGRAM, 1.5, 0.1, marks=("learns", "one prompt", "replays")),
            ("1.50x", "1.36-1.65", "faster (learns, replays)", "exact: not compared"),
        ),
        (made_row(NGRAM, 1.5, 0.1, marks=("one prompt",)), ("1.50x", "1.36-1.65", "faster", "exact: not compared")),
        (made_row(NGRAM, 1.5, 0.0, speedup_high=None), ("1.50x", "-", "faster", "exact: not compared")),
    ],
)
def test_a_speedup_stands_beside_its_interval_its_verdict_and_its_contract(row: Row, shown: tuple[str, ...]) -> None:
    found = shown_cells(row)
    assert (found["speedup"], found["interval"], found["verdict"], found["contract"]) == shown


def test_a_section_is_titled_by_all_that_its_rows_share_in_words() -> None:
    """Values that are not the usual ones, in the order of the options; numbers without zeros that say nothing."""
    usual = made_row(Arm(SETTING.replaced(device="auto", dtype="auto")), device="cuda:1", dtype="bfloat16")
    assert tables.section_title(usual) == "tiny, cuda:1, bfloat16, batch 1, 24 tokens"
    setting = SETTING.replaced(
        batch=4, backend="triton", temperature=0.5, top_k=20, top_p=0.875, min_p=0.25, presence_penalty=1.0
    )
    assert tables.section_title(made_row(Arm(setting))) == (
        "tiny, cpu, float32, batch 4, backend triton, temperature 0.5, top-k 20, top-p 0.875, min-p 0.25, "
        "presence penalty 1, 24 tokens"
    )


KINDS = ("code_editing", "chat", "long_story")


def test_the_heat_map_has_a_row_of_each_arm_a_column_of_each_workload_and_what_their_texts_are_like() -> None:
    """Workloads in the order of measurement, under short names; what was not measured there is a dash."""
    arms = (PLAIN, NGRAM, replace(NGRAM, k=8), replace(NGRAM, name="mine"), PEER)
    texts = {"code_editing": Text(0.756, 1.234), "long_story": Text(0.5, 2.0)}
    rows = [
        made_row(
            replace(arm, setting=SETTING.replaced(workload=kind)),
            1 + place + 0.1 * column,
            0.01,
            text=texts.get(kind),
        )
        for place, arm in enumerate(arms)
        for column, kind in enumerate(KINDS)
        if (place, column) != (2, 1)
    ]
    pooled = [made_row(everywhere(arm), 1.5 + place, baseline="ours") for place, arm in enumerate(arms)]
    found = tables.overview(pooled, rows)
    assert found.title == "Speedup over ours, geometric means of paired ratios"
    assert found.heat
    assert found.headers == ["arm", "policy K", "code", "chat", "long story", "all"]
    assert [[cell.text for cell in row] for row in found.cells] == [
        ["plain *", "-", "1.00x", "1.10x", "1.20x", "1.50x"],
        ["ngram", "match 4", "2.00x", "2.10x", "2.20x", "2.50x?"],
        ["ngram", "match 8", "3.00x", "-", "3.20x", "3.50x?"],
        ["mine", "match 4", "4.00x", "4.10x", "4.20x", "4.50x?"],
        ["transformers prompt lookup", "k=3", "5.00x", "5.10x", "5.20x", "5.50x?"],
        ["copy rate", "", "0.76", "-", "0.50", ""],
        ["entropy, bits", "", "1.23", "-", "2.00", ""],
    ]
    assert [cell.hint for cell in found.cells[2][2:]] == [
        "ngram, match 8, code_editing: 3.00x (2.97 to 3.03), faster",
        "not measured",
        "ngram, match 8, long_story: 3.20x (3.17 to 3.23), faster",
        "ngram, match 8, all: 3.50x, too few prompts for an interval",
    ]


@pytest.mark.parametrize("kind", ["question_answering", "summarisation", "code_editing", "rewriting", "reasoning"])
def test_a_long_name_of_a_workload_is_shortened_and_still_known(kind: str) -> None:
    short = {"question_answering": "q & a", "summarisation": "summary", "code_editing": "code"}
    short |= {"rewriting": "rewrite", "reasoning": "reason"}
    row = made_row(replace(NGRAM, setting=SETTING.replaced(workload=kind)), 1.5)
    assert tables.overview([row], [row]).headers[2] == short[kind]


@pytest.mark.parametrize(
    ("speedups", "tone"),
    [
        ((0.1, 0.899), "h0"),
        ((0.9, 0.979), "h1"),
        ((0.98, 1.019), "h2"),
        ((1.02, 1.249), "h3"),
        ((1.25, 1.599), "h4"),
        ((1.6, 2.199), "h5"),
        ((2.2, 20.0), "h6"),
    ],
)
def test_a_colour_begins_where_its_speedup_begins_and_ends_before_the_next(
    speedups: tuple[float, float], tone: str
) -> None:
    """Seven colours, of which the middle one holds what is within 2 % of plain."""
    assert [tables.heat_cell(made_row(NGRAM, speedup)).tone for speedup in speedups] == [tone, tone]


def test_what_has_no_speed_has_no_colour_and_says_why() -> None:
    assert tables.heat_cell(made_row(NGRAM, failure="it differs\nat token 3")) == TableCell("FAILED", "", "it differs")
    assert tables.heat_cell(None) == tables.heat_cell(made_row(NGRAM)) == TableCell("-", "", "not measured")
    incomparable = tables.heat_cell(made_row(NGRAM, 1.5, 0.1, reason="another machine"))
    assert incomparable == TableCell("1.50x!", "", "ngram, match 4, chat: 1.50x (1.36 to 1.65), another machine")
    again = tables.heat_cell(made_row(AGAIN, 1.5, 0.1))
    assert (again.text, again.tone) == ("1.50x", "")


def test_the_share_of_rows_that_were_measured_is_said_with_what_failed_and_how() -> None:
    fine, broken = made_row(NGRAM, 1.5), made_row(NGRAM, failure="it differs")
    timeout = replace(broken, figures=replace(broken.figures, failed="timeout"))
    assert tables.success([fine, timeout, broken, timeout, fine, timeout, fine, fine]) == (
        "4 of 8 rows were measured and kept their contract (50%); 1 failed: contract; 3 failed: timeout"
    )


def test_ops_are_added_up_by_backend_in_the_order_of_their_names() -> None:
    ran = [
        {"ops": {"sample": {"triton": 1000, "cpu": 2}, "linear": {"cpu": 3}}},
        None,
        {"ops": {"linear": {"cpu": 4, "triton": 5}}},
        {"num_drafts": 3},
    ]
    rows = [made_row(NGRAM, counters=counters) for counters in ran]
    assert tables.op_lines(rows) == ["ops on cpu: linear 7, sample 2", "ops on triton: linear 5, sample 1,000"]


def test_below_the_tables_stands_what_must_be_known_of_single_rows() -> None:
    """How intervals are made, what a user's names stand for, perplexities, what may not be compared, ties."""
    mine, bare = replace(NGRAM, name="mine"), replace(NGRAM, k=8)
    pooled = [
        made_row(everywhere(PLAIN), 1.0, judged_perplexity=3.25, method="b"),
        made_row(everywhere(mine), 1.5, judged_perplexity=4.5, marks=("one prompt",), method="a"),
        made_row(everywhere(bare), 1.5, reason="another dtype", method=""),
        made_row(everywhere(PEER), 1.5, marks=("learns",), method="a"),
    ]
    rows = [
        made_row(mine, 1.5, reason="loops", marks=("one prompt",), ties=("tie 1", "tie 2")),
        made_row(bare, 1.5, reason="another dtype"),
        made_row(PEER, 1.5, ties=("tie 3",)),
    ]
    assert tables.notes(pooled, rows) == [
        "speedup: each workload weighs the same; interval: 95 %, a",
        "speedup: each workload weighs the same; interval: 95 %, b",
        MARKS,
        "mine: ngram/match/fixed/4",
        "perplexity of the outputs under the judge: plain 3.250, mine 4.500",
        "mine, all: one prompt makes more than half of its speedup",
        "ngram/match/fixed/8, all: not comparable: another dtype",
        "mine, chat: not comparable: loops",
        f"{mine.id}: tie 1",
        f"{mine.id}: tie 2",
        f"{PEER.id}: tie 3",
    ]
    assert tables.notes([made_row(everywhere(PLAIN), method="")], []) == [MARKS]


def test_each_arms_speed_over_each_others_is_its_rows_and_the_columns_are_the_rows_numbers() -> None:
    mine = replace(NGRAM, name="mine")
    speeds = {
        (PLAIN, mine): Estimate(0.5, 0.4, 0.6, 8, "t"),
        (mine, PLAIN): Estimate(2.0, 1.7, 2.5, 8, "t"),
        (PEER, PLAIN): Estimate(1.05, 1.04, 1.06, 8, "t"),
        (PEER, mine): Estimate(1.5, None, None, 3, "t"),
    }
    table = tables.contrasts_table({pair: SpeedVerdict(speed, 0.05) for pair, speed in speeds.items()})
    assert table.headers == ["faster than", "1", "2", "3"]
    assert [[cell.text for cell in row] for row in table.cells] == [
        ["1 plain", "-", "0.50x", "-"],
        ["2 mine", "2.00x", "-", "-"],
        ["3 transformers_prompt_lookup(k=3)", "1.05x~", "1.50x?", "-"],
    ]
    assert (table.title, table.detail) == ("Each arm's speed over each other's", True)


def test_every_column_has_a_meaning_and_is_said_once() -> None:
    headers = [column.header for columns in COLUMNS for column in columns]
    said = [line.partition(": ")[0] for line in tables.meanings()]
    assert said == [*dict.fromkeys(headers), "copy rate", "entropy, bits"]
    assert all(line.partition(": ")[2] for line in tables.meanings())


def test_a_table_of_rows_has_the_columns_and_the_place_that_it_was_given() -> None:
    rows = [made_row(NGRAM, 1.5, tau=2.0), made_row(PLAIN, 1.0, tau=1.0)]
    shown = tables.rows_table(rows, tables.REASONS[:2], "Why")
    assert (shown.title, shown.headers, shown.detail) == ("Why", ["arm", "tau"], False)
    assert [list(row) for row in shown.rows] == [["ngram", "2.00"], ["plain *", "1.00"]]
    assert tables.rows_table(rows, tables.REASONS, detail=True).detail


def test_a_csv_file_has_every_figure_that_fits_a_cell_and_the_counters_behind_them() -> None:
    """What is a list or a dict stands in the JSON alone, but for the marks; an unknown value is empty."""
    counted = made_row(
        NGRAM,
        1.5,
        0.25,
        tau=2.0,
        marks=("learns", "replays"),
        counters={"num_drafts": 3, "ops": {}, "host_reads": 7},
        acceptance_by_position=(0.5, 0.25),
        acceptance_histogram={"1": 2},
        memory={"a": 1},
    )
    bare = made_row(PLAIN, target="other")
    header, *lines = csv.reader(tables.as_csv([bare, counted]).splitlines())
    nested = ("counters", "memory", "acceptance_by_position", "acceptance_histogram", "marks")
    assert header == ["target", *(key for key in KEYS if key not in nested), "marks", "num_drafts", "host_reads"]
    plain, ngram = (dict(zip(header, line, strict=True)) for line in lines)
    expected = {"target": "tiny", "draft": "ngram", "speedup": "1.5", "speedup_low": "1.2", "tau": "2.0"}
    expected |= {"marks": "learns replays", "num_drafts": "3", "host_reads": "7"}
    assert {name: ngram[name] for name in expected} == expected
    assert (plain["target"], plain["marks"], plain["num_drafts"], plain["tau"]) == ("other", "", "", "")
    assert "\r" not in tables.as_csv([bare, counted])
    assert tables.as_csv([]) == "target,marks\n"


@pytest.mark.parametrize("name", ["a" * 14 + "b" * 14, "a" * 14 + "b" * 15, "a" * 30 + "b" * 30])
def test_a_name_of_more_than_28_letters_loses_its_middle_on_a_terminal_alone(name: str) -> None:
    row = made_row(Arm(SETTING, name, k=4), 1.5)
    shown = name if len(name) == 28 else "a" * 14 + "…" + "b" * 13
    for table in (tables.overview([row], [row]), tables.rows_table([row], tables.SPEED)):
        lines = section_lines(Section(parts=[table]))
        assert any(line.startswith(f"{shown}  match 4  ") for line in lines)
        assert max(map(len, lines)) <= 100
        assert f"| {name} |" in markdown(Document(sections=[Section(parts=[table])]))
