"""The table of window widths: what is equal, a tie or a bug at each, and planted faults from nine on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchsuite.measure.arms import Arm
from benchsuite.measure.rows import Row
from benchsuite.report.document import Lines, Table
from benchsuite.report.widths import FEWEST_WIDTHS, spans_text, width_finding, widths_parts
from benchsuite.tests.report.made import AGAIN, NGRAM, PLAIN, made_row
from benchsuite.tests.rig import Run

NINE = """
from specdec import hookimpl
from specdec_kernels.reference import Reference

class WrongFromNine(Reference):
    name, priority = "wrong_from_nine", 1

    def tree_attention(self, query, *rest):
        out = super().tree_attention(query, *rest)
        if 9 <= query.shape[2] <= 16:
            out = out.clone()
            out[:, 8:] = 0
        return out

@hookimpl
def specdec_register_backends(register):
    register("wrong_from_nine", WrongFromNine)
"""
"""A backend whose ninth slot and those behind it see nothing; chunks of a prefill are wider."""


def of_widths(*widths: int) -> list[Row]:
    """Rows of a strategy, after those of plain decoding."""
    rows = [made_row(replace(NGRAM, k=width - 1), 1.5, contract_checked="4/4") for width in widths]
    return [made_row(PLAIN, contract_checked="baseline"), made_row(AGAIN, contract_checked="4/4"), *rows]


def summary_of(rows: Sequence[Row]) -> str:
    """The summary of the only strategy."""
    [_, lines] = widths_parts(rows)
    assert isinstance(lines, Lines)
    return lines.lines[0]


def test_each_width_has_its_outputs_and_its_cost_and_the_first_bug_is_named() -> None:
    rows = of_widths(2, 3, 4, 5, 9, 10)
    rows[4] = made_row(rows[4].arm, 2.0, contract_checked="3/4, 1 tie", ties=("a tie",), verify_cost=1.25)
    rows[6] = made_row(rows[6].arm, failure="token 7 is another", failed="contract", contract_checked="1/4")
    rows[7] = made_row(rows[7].arm, failure="token 9 is another", failed="contract", contract_checked="0/4")
    [table, _] = widths_parts(rows)
    assert isinstance(table, Table)
    assert table.title == "By window width: ngram match"
    assert [[cell.text for cell in row] for row in table.cells] == [
        ["1", "4/4", "equal", "-", "-"],
        ["2", "4/4", "equal", "-", "-"],
        ["3", "4/4", "equal", "-", "-"],
        ["4", "3/4, 1 tie", "1 tie", "1.25", "-"],
        ["5", "4/4", "equal", "-", "-"],
        ["9", "1/4", "bug", "-", "-"],
        ["10", "0/4", "bug", "-", "-"],
    ]
    assert summary_of(rows) == "window widths: equal at 1-3, 5; certified ties at 4; bug at 9-10, the first at 9"


def test_a_row_that_failed_otherwise_is_no_bug() -> None:
    row = made_row(NGRAM, failure="no memory is left", failed="out of memory")
    assert width_finding(row) == "failed: out of memory"
    assert width_finding(made_row(NGRAM, ties=("one", "two"))) == "2 ties"


def test_few_widths_other_controllers_and_other_contracts_have_no_table() -> None:
    few = of_widths(*range(2, FEWEST_WIDTHS + 1))
    assert widths_parts(few) == []
    many = [Arm(NGRAM.setting, "ngram", k=k) for k in range(1, 8)]
    assert widths_parts([made_row(arm, contract="distribution") for arm in many]) == []
    assert widths_parts([made_row(replace(arm, controller="goodput")) for arm in many]) == []
    assert len(widths_parts([made_row(arm) for arm in many])) == 2


@given(st.sets(st.integers(1, 12), min_size=1))
def test_spans_name_each_number_once(numbers: set[int]) -> None:
    spans = [part.split("-") for part in spans_text(sorted(numbers)).split(", ")]
    found = [n for span in spans for n in range(int(span[0]), int(span[-1]) + 1)]
    assert found == sorted(numbers)
    assert all(int(after[0]) > int(before[-1]) + 1 for before, after in pairwise(spans))


@pytest.mark.slow
def test_a_backend_that_is_wrong_from_width_nine_on_is_named_at_nine(run: Run, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(NINE)
    given = (
        "--specdec-target tiny --specdec-workload chat --specdec-prompts 2 --specdec-peer none --specdec-width 1,7-10"
    )
    asked = [*given.split(), "--specdec-max-new-tokens", "40", "--specdec-results", "kept"]
    words = ["-m", "pytest", "--pyargs", "benchsuite.test_speculation", "-p", "no:cacheprovider", *asked]
    done = run(*words, "--specdec-backend", "wrong_from_nine")
    assert done.returncode == 1, done.stdout[-3000:]
    assert "window widths: equal at 1, 7-8; bug at 9-10, the first at 9" in " ".join(done.stdout.split())
    [file] = tmp_path.glob("kept/*/benchmark.json")
    rows = json.loads(file.read_text())["rows"]
    found = {row["num_speculative_tokens"] + 1: row["failed"] for row in rows if row["draft"] == "oracle(0.9)"}
    assert found == {7: None, 8: None, 9: "contract", 10: "contract"}
