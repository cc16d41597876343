"""The examples in docs/gate.md: the first ones run, and pytest accepts the options of every other example."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from benchsuite.gate.rules import FORMATS, OPTIONS
from benchsuite.tests.rig import Run

ROOT = Path(__file__).parents[3]
PAGE, WORKFLOW = ROOT / "docs" / "gate.md", ROOT / ".github" / "workflows" / "ci.yml"


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), flags=re.S)


def test_every_option_and_format_is_documented() -> None:
    text = PAGE.read_text()
    assert [option.name for option in OPTIONS if f"--gate-{option.name}" not in text] == []
    assert [name for name in FORMATS if f"`{name}`" not in text] == []


def commands(node: object) -> list[str]:
    """All pytest commands in a CI service's configuration."""
    if isinstance(node, dict):
        return [line for value in node.values() for line in commands(value)]
    if isinstance(node, list):
        return [line for value in node for line in commands(value)]
    return [node] if isinstance(node, str) and node.startswith("pytest ") else []


def test_the_projects_own_workflow_runs_what_ci_runs_and_gates_as_the_page_shows() -> None:
    jobs = yaml.safe_load(WORKFLOW.read_text())["jobs"]
    assert {"run": "bash .ci/run"} in jobs["suite"]["steps"]
    [own], shown = commands(jobs["gate"]), commands(yaml.safe_load(_blocks("yaml")[0]))
    for part in ("--gate=fail", '--gate-against "origin/$GITHUB_BASE_REF"', "--gate-export markdown=gate.md"):
        assert part in own
        assert any(part in line for line in shown)


@pytest.mark.slow
def test_the_services_pytest_lines_are_understood(run: Run, tmp_path: Path) -> None:
    (tmp_path / "gate.json").write_text('{"format": "specdec-gate", "version": 4, "made": {}, "rows": {}}')
    for words in (
        ["init", "-q", "-b", "main"],
        ["commit", "-q", "--allow-empty", "-m", "a step"],
        ["branch", "origin/main"],
    ):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True)
    found = [line for block in (*_blocks("yaml"), WORKFLOW.read_text()) for line in commands(yaml.safe_load(block))]
    assert len(found) == 3
    for line in found:
        filled = re.sub(r"\$\w+", "main", line).replace('"', "").replace("my_draft", "ngram").split()[1:]
        done = run("-m", "pytest", *filled, "--collect-only", "-q")
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_pages_first_lines_make_a_baseline_and_gate(run: Run) -> None:
    save, compare, _ = _blocks("sh")[0].splitlines()
    small = ("--specdec-workload=chat", "--specdec-draft=ngram", "--specdec-peer=none", "--gate-pairs=1")
    short = ("--specdec-prompts=1", "--specdec-max-new-tokens=4", "-p", "no:cacheprovider", "-q")
    for line, said in ((save, "saved "), (compare, "PASS: ")):
        done = run("-m", *shlex.split(line), *small, *short)
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"\n{said}" in done.stdout
