"""The files of a comparison: every setting has a section of its own, with its own figures."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchsuite.machine.files import write_files
from benchsuite.measure.arms import Arm, Setting
from benchsuite.measure.results import Results, SettingResults
from benchsuite.measure.rows import Row, Text, vllm_names
from benchsuite.report import files, tables
from benchsuite.tests.report.made import NGRAM, PEER, PLAIN, everywhere, made_cell, made_row, run_of_cells
from benchsuite.tests.rig import SETTING

SETTINGS = [
    SETTING.replaced(batch=batch, temperature=temperature, max_new_tokens=tokens)
    for batch, temperature, tokens in ((1, 0.0, 24), (1, 0.7, 24), (4, 0.0, 24), (1, 0.0, 48))
]


def row(setting: Setting, workload: str, speedup: float) -> Row:
    """The row of one arm, by its speedup alone."""
    return made_row(Arm(setting.replaced(workload=workload), draft="ngram", k=4), speedup, 0.0)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """The files of four settings; setting n reads n.25 on chat, n.75 on reasoning and n.50 over all."""
    rows = [
        row(setting, workload, number + share)
        for number, setting in enumerate(SETTINGS, 1)
        for workload, share in (("chat", 0.25), ("reasoning", 0.75))
    ]
    settings = [
        SettingResults(
            setting.without_workload,
            (),
            tuple(one for one in rows if one.arm.setting.without_workload == setting.without_workload),
            (row(setting, "", number + 0.5),),
        )
        for number, setting in enumerate(SETTINGS, 1)
    ]
    results = Results(tuple(settings), rows=tuple(rows), card=("a card",), said=("how precise",))
    write_files(tmp_path, files.comparison_files(results))
    return tmp_path


def test_a_section_of_the_markdown_holds_its_own_settings_figures(written: Path) -> None:
    sections = re.split(r"^## (?=tiny, )", (written / "table.md").read_text(), flags=re.MULTILINE)[1:]
    assert [section.splitlines()[0] for section in sections] == [
        "tiny, cpu, float32, batch 1, 24 tokens",
        "tiny, cpu, float32, batch 1, temperature 0.7, 24 tokens",
        "tiny, cpu, float32, batch 4, 24 tokens",
        "tiny, cpu, float32, batch 1, 48 tokens",
    ]
    for number, section in enumerate(sections, 1):
        overview = next(line for line in section.splitlines() if line.startswith("| ngram"))
        assert re.findall(r"[\d.]+x", overview) == [f"{number}.25x", f"{number}.75x", f"{number}.50x"]


def test_a_section_of_the_page_holds_its_own_settings_figures(written: Path) -> None:
    page = (written / "report.html").read_text()
    sections = re.split(r"<h2>(?=tiny, )", page)[1:]
    assert len(sections) == len(SETTINGS)
    for number, section in enumerate(sections, 1):
        body = section.partition("<h2>")[0]
        assert {figure[0] for figure in re.findall(r"\d\.\d\dx", body)} == {str(number)}


def test_two_settings_differ_in_the_json_and_in_the_csv(written: Path) -> None:
    keys = ("batch", "temperature", "max_new_tokens")
    found = json.loads((written / "benchmark.json").read_text())["rows"]
    assert len({tuple(one[key] for key in keys) for one in found}) == len(SETTINGS)
    lines = list(csv.DictReader((written / "table.csv").read_text().splitlines()))
    assert len({tuple(line[key] for key in keys) for line in lines}) == len(SETTINGS)


def test_a_controller_without_a_k_shows_none() -> None:
    without = replace(row(SETTING, "chat", 1.0), arm=Arm(SETTING, draft="ngram", controller="theirs", k=None))
    cells = tables.rows_table([without], tables.SPEED).rows[0]
    assert "match theirs" in cells
    assert "None" not in cells


ARMS = (PLAIN, NGRAM, replace(NGRAM, k=8, policy="block"), PEER, Arm(SETTING, "a" * 40 + "b" * 40, k=None))


def bars_of(rows: list[Row]) -> list[dict[str, Any]]:
    """The bars of the picture of speedups: label, text, and the pixels where bar and interval begin and end."""
    settings = tuple(SettingResults(row.arm.setting, (), (), (row,)) for row in rows)
    svg = ElementTree.fromstring(files.comparison_files(Results(settings))["speedup.svg"])
    found: dict[str, list[ElementTree.Element]] = {}
    for one in svg:
        found.setdefault(one.tag.rpartition("}")[2], []).append(one)
    assert [one.text for one in found["text"]][-1] == "plain = 1"
    bars = []
    for place, bar in enumerate(found["rect"]):
        line, label, text = found["line"][place], found["text"][2 * place], found["text"][2 * place + 1]
        bars.append(
            {
                "label": label.text,
                "text": text.text,
                "begin": float(bar.get("x", "")),
                "end": float(bar.get("x", "")) + float(bar.get("width", "")),
                "low": float(line.get("x1", "")),
                "high": float(line.get("x2", "")),
                "fill": bar.get("fill"),
                "one": float(found["line"][-1].get("x1", "")),
                "y": float(bar.get("y", "")),
            }
        )
    return bars


def test_a_bar_is_as_long_as_its_speedup_and_the_longest_interval_ends_where_all_bars_end() -> None:
    """From nothing to the largest upper end, 2.5, in 400 pixels; a bar without an interval has one of no length."""
    rows = [
        made_row(everywhere(PLAIN), 1.0, 0.0),
        made_row(everywhere(NGRAM), 2.0, 0.25),
        made_row(everywhere(PEER), 0.5),
        made_row(everywhere(replace(NGRAM, k=9))),
    ]
    plain, ngram, peer = bars_of(rows)
    assert [bar["text"] for bar in (plain, ngram, peer)] == ["1.00x baseline", "2.00x faster", "0.50x too few"]
    at = {speedup: 315 + 400 * speedup / 2.5 for speedup in (0.5, 1.0, 1.6, 2.0, 2.5)}
    assert (plain["end"], plain["low"], plain["high"]) == pytest.approx((at[1.0],) * 3)
    assert (ngram["end"], ngram["low"], ngram["high"]) == pytest.approx((at[2.0], at[1.6], at[2.5]))
    assert (peer["end"], peer["low"], peer["high"]) == pytest.approx((at[0.5],) * 3)
    assert {bar["begin"] for bar in (plain, ngram, peer)} == {315}
    assert {bar["one"] for bar in (plain, ngram, peer)} == {at[1.0]}
    assert plain["fill"] == ngram["fill"] != peer["fill"], "slower than the baseline"
    assert plain["y"] < ngram["y"] < peer["y"]
    [alone] = bars_of([made_row(everywhere(NGRAM), 3.0)])
    assert (alone["end"], alone["one"]) == pytest.approx((715, 315 + 400 / 3), abs=0.05)


def test_a_bar_is_labelled_by_its_strategy_and_by_what_its_setting_has_that_is_not_usual() -> None:
    """The budget of tokens only where bars differ in it."""
    wide = SETTING.replaced(batch=2, temperature=0.75).without_workload
    rows = [made_row(everywhere(arm), 1.5) for arm in ARMS] + [made_row(Arm(wide, "ngram", k=4), 1.5)]
    labels = [bar["label"] for bar in bars_of(rows)]
    name = "a" * 14 + "…" + "b" * 13
    strategies = ["plain", "ngram, match 4", "ngram, block 8", "transformers prompt lookup, k=3", f"{name}, match"]
    assert labels == [*strategies, "ngram, match 4, batch 2, T 0.75"]
    longer = made_row(Arm(wide.replaced(max_new_tokens=48), "ngram", k=4), 1.5)
    assert [bar["label"] for bar in bars_of([rows[1], rows[-1], longer])] == [
        "ngram, match 4, 24 tokens",
        "ngram, match 4, batch 2, 24 tokens, T 0.75",
        "ngram, match 4, batch 2, 48 tokens, T 0.75",
    ]


def test_a_run_without_a_row_has_all_its_files() -> None:
    made = files.comparison_files(Results())
    assert json.loads(made["benchmark.json"]) == {"rows": [], "pooled": []}
    assert made["steps.jsonl.gz"] == ""
    ElementTree.fromstring(made["speedup.svg"])


@pytest.mark.parametrize("steps", [True, False])
def test_the_files_hold_every_row_every_run_and_every_step(steps: bool) -> None:
    """Rows of a workload and rows over all; the paired ratios with the seconds that they were made of."""
    measured = run_of_cells(made_cell(SETTING, {PLAIN: [1.0, 2.0], NGRAM: [0.5, 0.5]}, Text(0.25, 1.5)))
    results = measured.results()
    made = files.comparison_files(results, steps=steps, more={"more.txt": "other"})
    names = {"benchmark.json", "ratios.json.gz", "table.md", "table.csv", "speedup.svg", "report.html", "more.txt"}
    assert set(made) == names | ({"steps.jsonl.gz"} if steps else set())
    assert made["more.txt"] == "other"
    found = json.loads(made["benchmark.json"])
    for rows, own in ((found["rows"], results.rows), (found["pooled"], results.pooled)):
        for one, row in zip(rows, own, strict=True):
            expected = row.info | {
                **{"row": row.arm.id, "target": "tiny", "vllm": vllm_names(row.figures), "ratios": row.ratios},
                **{"rounds": list(row.rounds), "ties": [], "failure": None, "runs": row.measured},
            }
            texts = {"copy_rate": 0.25, "entropy_bits": 1.5} if rows is found["rows"] else {}
            expected |= {"copy_rate": None, "entropy_bits": None} | texts
            assert one == json.loads(json.dumps(expected | ({"steps": row.steps} if steps else {})))
    ngram = json.loads(made["ratios.json.gz"])[1]
    assert ngram == {
        "arm": "ngram/match/fixed/4",
        "setting": "tiny, cpu, float32, batch 1, 24 tokens",
        "workload": "chat",
        "baseline": "plain",
        "ratios": pytest.approx([2.0, 4.0]),
        "runs": [[0, 0.5, 10, 1.0], [1, 0.5, 10, 1.0]],
    }
    if steps:
        lines = [json.loads(line) for line in made["steps.jsonl.gz"].splitlines()]
        every = [{"row": row.arm.id, **one} for row in results.rows for one in row.steps]
        assert lines == json.loads(json.dumps(every))
        assert len(lines) == 2 * 10 + 2 * 5
    assert len(list(csv.DictReader(made["table.csv"].splitlines()))) == 4


def test_a_row_without_a_pair_has_no_ratio_in_its_file() -> None:
    results = Results(rows=(made_row(NGRAM, failure="it differs"),))
    [found] = json.loads(files.comparison_files(results)["ratios.json.gz"])
    assert (found["ratios"], found["runs"]) == ([], [])
