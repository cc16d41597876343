"""What an examination is reported as: each verdict in words, the command and its JSON, and the kit's checks."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchsuite import conformance
from benchsuite.__main__ import benchsuite_main
from benchsuite.conformance.claims import failures
from benchsuite.conformance.heads import HeadChecks
from benchsuite.doctor import fields
from benchsuite.doctor.commands import HeadReport, report_json
from benchsuite.doctor.examination import Examination, ExaminedReading
from benchsuite.machine.files import strict_json
from benchsuite.report.examined import verdict_lines
from benchsuite.tests.made_up_examinations import FAULTY_HEADS, accepting, examination
from specdec_plugins.published.reading import Choice


def test_a_misreading_is_said_with_the_draft_to_take() -> None:
    found = examination(accepting("taken", 0.05), accepting("order", 0.3), accepting("layers", 0.7))
    [line] = verdict_lines(found)
    assert line.startswith("read otherwise it accepts more: layers, ")
    assert "eagle3(layers)" in line
    assert "at most 1%" in line
    assert found.decided


def test_a_right_reading_is_said_with_the_text_it_took() -> None:
    [line] = verdict_lines(examination(accepting("taken", 0.7), accepting("layers", 0.1)))
    assert line.startswith(
        "read rightly: none of 1 other readings accepts 0.05 proposals more at a place (24 prompts, "
    )
    assert "480 tokens" in line


def test_a_reading_that_is_nearly_as_good_needs_more_text() -> None:
    found = examination(accepting("taken", 0.5), accepting("layers", 0.53))
    assert found.verdict == "cannot tell"
    assert f"open is layers; about {found.needs:,.0f} tokens decide it" in verdict_lines(found)[0]
    assert found.needs > found.tokens


def test_a_head_that_accepts_nothing_in_any_reading_is_not_called_right() -> None:
    found = examination(accepting("taken", 0.0), accepting("layers", 0.0))
    assert found.verdict == "cannot tell"
    assert found.needs == float("inf")
    assert (
        "not seen to accept more than chance (0.00 proposals at a place, and 0.00 by chance)" in verdict_lines(found)[0]
    )


def test_a_head_whose_skill_is_not_shown_yet_is_told_how_much_text_shows_it() -> None:
    weak = accepting("taken", 0.04, prompts=6)
    assert not weak.skilled
    found = examination(weak)
    assert found.verdict == "cannot tell"
    assert f"about {found.needs:,.0f} tokens decide it" in verdict_lines(found)[0]
    more = int(weak.skill_needs) + 1
    assert accepting("taken", 0.04, prompts=2 * more).skilled


@pytest.mark.parametrize("others", [(), (accepting("layers", 0.1),)])
def test_a_head_that_needs_the_targets_states_is_told_apart_and_not_called_right(
    others: tuple[ExaminedReading, ...],
) -> None:
    found = examination(accepting("taken", 0.8, later=0.05), *others)
    assert found.verdict == "cannot tell"
    [first, line] = verdict_lines(found)
    assert "no other reading accepts more, and yet the head falls off" in first
    assert line.startswith("good after the target's states, bad without them: position 2 accepts ")
    assert examination(accepting("taken", 0.8, later=0.6), *others).verdict != "cannot tell"


def test_a_head_beside_which_no_other_reading_loads_is_not_called_right() -> None:
    found = examination(accepting("taken", 0.7))
    assert found.verdict == "nothing to compare with"
    [line] = verdict_lines(found)
    assert "no other reading loads, so that acceptance cannot say whether this one is right (1." in line
    assert examination(accepting("taken", 0.7), accepting("layers", 0.1)).verdict == "read rightly"


@pytest.mark.slow
def test_the_command_examines_a_draft_and_writes_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "head.json"
    short = ["--target", "tiny", "--prompts", "12", "--max-new-tokens", "8", "--json", str(file)]
    assert benchsuite_main(["head", "oracle(rate=1.0)", *short]) == 0
    assert "nothing to compare with: no other reading loads" in capsys.readouterr().out
    found = json.loads(file.read_text())
    assert (found["verdict"], found["prompts"]) == ("nothing to compare with", 12)
    assert (found["taken"]["accepted"], found["tokens_needed"]) == (3, 0)
    assert benchsuite_main(["head", "oracle", "--target", "tiny", "--k", "0"]) == 2


def named_fields(table: Mapping[str, str]) -> set[str]:
    """Return the names of fields in a table of meanings."""
    return {name for names in table for name in names.split(", ")}


@pytest.mark.parametrize(
    "found",
    [
        examination(accepting("taken", 0.3), accepting("layers", 0.7), accepting("order", 0.32)),
        examination(accepting("taken", 0.0, prompts=1), accepting("layers", 0.0, prompts=1)),
    ],
    ids=["two others", "one prompt"],
)
def test_every_field_of_the_json_has_a_meaning_and_every_number_is_finite(found: Examination) -> None:
    choice = Choice("layers", (1, 2), "option layers", instead=(2, 3))
    report = report_json(HeadReport("a head", "its target", (choice,), found, 1.5))
    read = json.loads(strict_json(report))
    assert read.keys() == named_fields(fields.REPORT)
    assert read["taken"].keys() == named_fields(fields.READING)
    assert read["conventions"] == [{"name": "layers", "value": [1, 2], "source": "option layers", "head_says": [2, 3]}]
    for other in read["others"]:
        assert other.keys() == {*named_fields(fields.READING), *named_fields(fields.OTHER)}
    for name in ("head_says", *read["taken"]["positions"][0], *read["verdict"].split(";")):
        assert name in fields.fields_text()
    assert (read["tokens_needed"] == 0) == (read["verdict"] != "cannot tell")


@pytest.mark.slow
def test_the_kit_passes_a_head_that_accepts_and_names_one_that_does_not() -> None:
    good, bad = (conformance.head(text, target="tiny", prompts=12) for text in ("oracle(rate=1.0)", "garbage"))
    assert not [*failures(good)]
    [(name, text)] = failures(bad)
    assert name == "test_it_accepts_more_than_chance"
    assert "garbage drafts for tiny" in text


@pytest.mark.parametrize(("found", "check", "message"), FAULTY_HEADS, ids=[check for _, check, _ in FAULTY_HEADS])
def test_the_kit_names_each_fault_of_a_head(found: Examination, check: str, message: str) -> None:
    class Examined(HeadChecks):
        text, target = "a head", "its target"
        report = HeadReport("a head", "its target", (), found, 0.0)

    [(name, text)] = failures(Examined)
    assert check in name
    assert re.search(message, text), text
