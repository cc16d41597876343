"""The files of a comparison: every setting has a section of its own, with its own figures."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchsuite.machine.files import write_files
from benchsuite.measure.arms import Arm, Setting
from benchsuite.measure.figures import RowFigures
from benchsuite.measure.interval import Estimate
from benchsuite.measure.results import Results, SettingResults
from benchsuite.measure.rows import Row
from benchsuite.measure.verdict import SpeedVerdict
from benchsuite.report import files, tables
from benchsuite.tests.rig import SETTING

SETTINGS = [
    SETTING.replaced(batch=batch, temperature=temperature, max_new_tokens=tokens)
    for batch, temperature, tokens in ((1, 0.0, 24), (1, 0.7, 24), (4, 0.0, 24), (1, 0.0, 48))
]


def row(setting: Setting, workload: str, speedup: float) -> Row:
    """The row of one arm, by its speedup alone."""
    figures = RowFigures(
        setting=setting.id,
        backend="reference",
        device="cpu",
        dtype="float32",
        batch=setting.batch,
        workload=workload,
        baseline="plain",
        speedup=speedup,
        speedup_low=speedup,
        speedup_high=speedup,
        peak_memory_bytes=0,
        contract="exact",
        sampling=setting.sampling,
    )
    arm = Arm(setting.replaced(workload=workload), draft="ngram", k=4)
    verdict = SpeedVerdict(Estimate(speedup, speedup, speedup, 3, "t"))
    return Row(arm, figures, {workload: [speedup] * 3}, (1.0,), None, "tiny", None, "t", (), [], [], verdict)


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
            (row(setting.without_workload, "all", number + 0.5),),
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
