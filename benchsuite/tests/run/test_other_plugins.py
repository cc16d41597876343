"""The suite beside other pytest plugins: nothing clashes, and the same is measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchsuite.tests.rig import QUICK, SHORT, Python, Run, child_variables, repeatable
from specdec.installed import LOAD_PLUGINS

ROWS = (
    *(*SHORT, "--specdec-draft", "ngram,garbage", "--specdec-peer", "transformers", "--specdec-prompts", "1"),
    *("--specdec-temperature", "0,0.7", "--specdec-max-new-tokens", "4"),
)
"""Two cells of five rows."""

PROPERTY = """
from hypothesis import given, strategies as st

@given(st.integers())
def test_property(x):
    assert x == x

def test_row(specdec_row, benchmark):
    assert specdec_row.failure is None

def test_timed(benchmark):
    benchmark(sum, range(10))
"""
"""A user's own file: a property, rows of the matrix, and a benchmark of another kind."""

BESIDE = {
    "all at once": ("-n", "2", "--dist", "worksteal", "--cov=specdec", "--hypothesis-seed=1", "--benchmark-disable"),
    "in one process": (
        *("-p", "randomly", "-p", "no:xdist", "--randomly-seed=3", "--cov=specdec", "--cov-report=term"),
        *("--hypothesis-show-statistics", "--hypothesis-seed=1"),
    ),
}
ALONE = {
    "xdist": ("-n", "2"),
    "no benchmarks": ("--benchmark-disable",),
    "cov": ("--cov=specdec", "--cov-report=term"),
    "randomly": ("-p", "randomly", "-p", "no:xdist", "--randomly-seed=3"),
    "hypothesis": ("--hypothesis-show-statistics", "--hypothesis-seed=1"),
}
"""One by one what is among ``BESIDE``, to find out which of them it was."""


@pytest.fixture(scope="module")
def alone(python: Python, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What does not depend on the clock, of the rows measured without any other plugin."""
    folder = tmp_path_factory.mktemp("alone")
    only = ("-p", "benchmark", "-p", "benchsuite.plugin")
    none = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "", LOAD_PLUGINS: ""}
    done = python(("-m", "pytest", *only, *ROWS, "--specdec-results", "out"), folder, child_variables("", none))
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted_rows(folder / "out")


def sorted_rows(root: Path) -> dict[str, object]:
    """The rows by what they are: another plugin may change their order."""
    return {json.dumps([row["draft"], row["temperature"], row["max_new_tokens"]]): row for row in repeatable(root)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "beside",
    [*BESIDE.values(), *(pytest.param(options, marks=pytest.mark.deep) for options in ALONE.values())],
    ids=[*BESIDE, *ALONE],
)
def test_another_plugin_beside_ours_changes_no_row_and_no_test(
    run: Run, tmp_path: Path, alone: dict[str, object], beside: tuple[str, ...]
) -> None:
    (tmp_path / "test_own.py").write_text(PROPERTY)
    done = run("-m", "pytest", "test_own.py", *ROWS, *beside, "--specdec-results", "out", PYTEST_ADDOPTS="")
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted_rows(tmp_path / "out") == alone
    assert " Speculative decoding " in done.stdout, "with workers the controller shows the tables"
    assert "INTERNALERROR" not in done.stdout + done.stderr
    if "--cov=specdec" in beside:
        assert "specdec/engine.py" in done.stdout
    # Workers too write one folder, and measure each cell once.
    assert len(list((tmp_path / "out").iterdir())) == 1
    assert len(list((tmp_path / "out").glob("*/cells/*"))) == 2


@pytest.mark.slow
def test_pytest_benchmarks_own_commands_read_our_json(run: Run, tmp_path: Path) -> None:
    done = run(
        "-m", "pytest", *QUICK, "--specdec-draft", "ngram", "--specdec-peer", "none", "--benchmark-json", "out.json"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    shown = run("-m", "pytest_benchmark", "compare", "./out.json", "--histogram", str(tmp_path / "drawn"))
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "tiny-chat-ngram-match-k4" in shown.stdout
    assert "<svg" in (tmp_path / "drawn-tiny_chat.svg").read_text()
