"""The suite beside other pytest plugins: nothing clashes, and the same is measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchsuite.tests.rig import SHORT, Run, repeatable

ROWS = (*SHORT, "--specdec-draft", "ngram,garbage", "--specdec-prompts", "1", "--specdec-temperature", "0,0.7")

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
    "xdist": ("-n", "2"),
    "no benchmarks": ("--benchmark-disable",),
    "cov": ("--cov=specdec", "--cov-report=term"),
    "randomly": ("-p", "randomly", "-p", "no:xdist", "--randomly-seed=3"),
    "hypothesis": ("--hypothesis-show-statistics", "--hypothesis-seed=1"),
    "all at once": ("-n", "2", "--cov=specdec", "--hypothesis-seed=1", "--benchmark-disable"),
}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What does not depend on the clock, of the rows measured without any other plugin."""
    import os
    import subprocess
    import sys

    folder = tmp_path_factory.mktemp("alone")
    only = ("-p", "benchmark", "-p", "benchsuite.plugin")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *only, *ROWS, "--specdec-results", "out"],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "HF_HUB_OFFLINE": "1", "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted_rows(folder / "out")


def sorted_rows(root: Path) -> dict[str, object]:
    """The rows by what they are: another plugin may change their order."""
    return {json.dumps([row["draft"], row["temperature"]]): row for row in repeatable(root)}


@pytest.mark.slow
@pytest.mark.parametrize("beside", BESIDE.values(), ids=[*BESIDE])
def test_another_plugin_beside_ours_changes_no_row_and_no_test(
    run: Run, tmp_path: Path, alone: dict[str, object], beside: tuple[str, ...]
) -> None:
    (tmp_path / "test_own.py").write_text(PROPERTY)
    done = run("-m", "pytest", "test_own.py", *ROWS, *beside, "--specdec-results", "out", PYTEST_ADDOPTS="")
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted_rows(tmp_path / "out") == alone
    assert "speculative decoding: tiny" in done.stdout
    assert "INTERNALERROR" not in done.stdout + done.stderr
    if "--cov=specdec" in beside:
        assert "specdec/engine.py" in done.stdout


@pytest.mark.slow
def test_pytest_benchmarks_own_commands_read_our_json(run: Run, tmp_path: Path) -> None:
    done = run("-m", "pytest", *ROWS, "--benchmark-json", "out.json")
    assert done.returncode == 0, done.stdout + done.stderr
    shown = run("-m", "pytest_benchmark", "compare", "./out.json", "--histogram", str(tmp_path / "drawn"))
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "tiny-chat-ngram-match-k4" in shown.stdout
    assert "<svg" in (tmp_path / "drawn-tiny_chat.svg").read_text()
