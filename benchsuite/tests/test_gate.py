"""The gate as users run it: verdicts, baselines, two checkouts, and the files that it writes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchsuite.tests.gate_rig import FAILED, GATED, NO_PLUGINS, OK, USAGE, Done, Suite, refused, save_baselines
from benchsuite.tests.rig import Run

pytestmark = pytest.mark.slow


def test_equal_times_pass_and_a_slowdown_fails_with_what_and_how_much(suite: Suite) -> None:
    made = suite.run("--gate-save", "gate.json", "--gate-launches", "5")
    assert "1 rows, 5 launches" in made.stdout
    refused(suite.run(*GATED), OK, "PASS")
    suite.write(seconds=1.06)
    refused(
        suite.run(*GATED),
        FAILED,
        "REGRESSED",
        "+6.0% seconds a call",
        "beyond the tolerance of 3.0%",
        "FAILED gate::test_theirs.py::test_work",
    )


def test_a_revision_is_measured_live_beside_the_working_tree(suite: Suite) -> None:
    suite.write(seconds=1.06)
    live = ("--gate=fail", "--gate-launches=5+2", "--gate-against")
    refused(suite.run(*live, "HEAD"), FAILED, "REGRESSED", "+6.0% seconds a call", "7 and 7 launches")
    left = subprocess.run(["git", "worktree", "list"], cwd=suite.folder, capture_output=True, text=True, check=True)
    assert len(left.stdout.splitlines()) == 1, "a worktree was left behind"


def test_a_gain_is_never_taken_silently(suite: Suite) -> None:
    save_baselines(suite, 5)
    before = (suite.folder / "gate.json").read_text()
    suite.write(seconds=0.9)
    refused(suite.run(*GATED), OK, "IMPROVED", "--gate-update")
    assert (suite.folder / "gate.json").read_text() == before
    refused(suite.run(*GATED, "--gate-update"), OK, "the baseline is now this run")
    assert "0.9\n" in (suite.folder / "gate.json").read_text()


def test_the_marker_gives_a_row_its_own_tolerance_and_level(suite: Suite) -> None:
    save_baselines(suite, 5)
    suite.write(seconds=1.06, mark="@pytest.mark.gate(tolerance=0.1)")
    refused(suite.run(*GATED), OK, "PASS", "+6.0%")
    suite.write(mark="@pytest.mark.gate(tolerence=0.1)")
    refused(suite.run(*GATED), USAGE, "the marker gate takes tolerance=", "tolerence")
    suite.write(mark="@pytest.mark.gate(tolerance=5)")
    refused(suite.run(*GATED), USAGE, "0.03 is 3 %")


def test_a_launch_keeps_the_options_of_ini_file_and_environment(suite: Suite) -> None:
    (suite.folder / "pytest.ini").write_text("[pytest]\naddopts = --ignore=test_broken.py\n")
    (suite.folder / "test_broken.py").write_text("1 / 0\n")
    (suite.folder / "test_other.py").write_text("def test_other(): assert False\n")
    suite.commit()
    live = ("--gate=fail", "--gate-against=HEAD", "--gate-launches=5+2", *NO_PLUGINS)
    environment = {"LAUNCHES": str(suite.folder), "PYTEST_ADDOPTS": "-k test_work --gate-pairs 1"}
    refused(suite.python("-m", "pytest", *live, **environment), OK, "gate: pair 5 of 5", "PASS", "at levels 0, 2")


def test_verdicts_are_exported_for_other_programs(suite: Suite) -> None:
    save_baselines(suite, 5)
    suite.write(seconds=1.06)
    formats = {"bmf": "a.json", "github-action-benchmark": "b.json", "markdown": "c.md", "junit": "d.xml"}
    chosen = ",".join(f"{kind}={file}" for kind, file in formats.items())
    refused(suite.run(*GATED, f"--gate-export={chosen}", "--gate-json=e.json"), FAILED, "junit:", "verdicts:")
    a, b, c, d, e = ((suite.folder / file).read_text() for file in (*formats.values(), "e.json"))
    assert json.loads(a)["test_theirs.py::test_work"]["seconds-level-3"]["value"] == pytest.approx(0.06)
    assert [one["value"] for one in json.loads(b)] == [pytest.approx(1.06)]
    assert "## Gate: REGRESSED" in c
    assert ElementTree.fromstring(d).get("failures") == "1"
    assert json.loads(e)["verdict"] == "REGRESSED"
    assert json.loads(e)["base"]["commit"]


def test_a_baseline_is_written_whole_or_not_at_all(suite: Suite) -> None:
    save_baselines(suite)
    text = (suite.folder / "gate.json").read_text()
    assert text == json.dumps(json.loads(text), indent=1, sort_keys=True) + "\n", "it would not show well in a diff"
    assert [p.name for p in suite.folder.iterdir() if p.name.startswith(".gate")] == []
    refused(suite.run("--gate-save=gate.json"), USAGE, "is there already")
    assert (suite.folder / "gate.json").read_text() == text


TINY = (
    "--pyargs",
    "benchsuite.test_speculation",
    "--specdec-target",
    "tiny",
    "--specdec-workload",
    "chat",
    "--specdec-draft",
    "oracle(0.8)",
    "--specdec-peer",
    "none",
    "--specdec-prompts",
    "3",
    "--specdec-max-new-tokens",
    "48",
)


def test_counters_of_our_rows_gate_exactly_and_a_hundredth_less_acceptance_is_caught(run: Run, tmp_path: Path) -> None:
    def gated(*options: str) -> Done:
        return run("-m", "pytest", *NO_PLUGINS, *TINY, "--gate-pairs=1", *options)

    made = gated("--gate-save=gate.json")
    assert made.returncode == OK, made.stdout + made.stderr
    against = ("--gate=fail", "--gate-against=gate.json")
    exported = ("--gate-export=bmf=a.json,github-action-benchmark=b.json",)
    refused(gated(*against, *exported), OK, "PASS", "at levels 0")
    assert {tuple(row) for row in json.loads((tmp_path / "a.json").read_text()).values()} == {("fails-level-0",)}
    assert {one["value"] for one in json.loads((tmp_path / "b.json").read_text())} == {1.0}
    refused(
        gated(*against, "--gate-plant=acceptance=0.01"),
        FAILED,
        "REGRESSED at level 0",
        "num_accepted_tokens_per_pos was",
        "where: acceptance",
        "1 failed",
    )
    refused(gated(*against, "--specdec-peer=transformers"), OK, "PASS")
    refused(gated(*against, "--specdec-prompts=1"), FAILED, "ERROR", "measured otherwise", "prompts 3 there and 1 here")
    refused(gated(*against, "--gate-plant=acceptance=0.2#2"), FAILED, "REGRESSED at level 0", "where: acceptance")
    refused(gated(*against, "--gate-plant=acceptance=0.2#9"), USAGE, "would slow down nothing: no such draft, prompt")
    # Without kernels the row is another on the same machine, whatever its tokens.
    lost = run("-m", "pytest", *NO_PLUGINS, *TINY, "--gate-pairs=1", *against, SPECDEC_FORCE_PY="1")
    refused(lost, FAILED, "REGRESSED at level 0", "on cpu ran", "does not any more", "where: kernels")
    file = tmp_path / "gate.json"
    content = json.loads(file.read_text())
    for row in content["rows"].values():
        row["plain_digest"] = row["digest"] = "another"
    file.write_text(json.dumps(content))
    refused(gated(*against), FAILED, "INCONCLUSIVE at level 0", "numerics: plain decoding itself emits other tokens")
    refused(gated(*against, "--gate-inconclusive=report"), OK, "INCONCLUSIVE")


def test_edited_prompts_are_measured_otherwise(run: Run, tmp_path: Path) -> None:
    """The same number of prompts with another word: it was called numerics, which CI lets through."""
    file = tmp_path / "asked.jsonl"
    file.write_text('{"turns": ["Name a river."]}\n{"turns": ["Name a lake."]}\n')
    short = ("--pyargs", "benchsuite.test_speculation", "--specdec-target=tiny", "--specdec-workload=asked.jsonl")
    few = ("--specdec-draft=ngram", "--specdec-peer=none", "--specdec-max-new-tokens=4", "--gate-pairs=1")
    made = run("-m", "pytest", *NO_PLUGINS, *short, *few, "--gate-save=gate.json")
    assert made.returncode == OK, made.stdout + made.stderr
    file.write_text(file.read_text().replace("lake", "hill"))
    gated = run(
        "-m",
        "pytest",
        *NO_PLUGINS,
        *short,
        *few,
        "--gate=fail",
        "--gate-against=gate.json",
        "--gate-inconclusive=report",
    )
    refused(gated, FAILED, "ERROR", "measured otherwise than the baseline: other prompts")


def test_the_order_of_the_launches_is_kept_with_its_seed(suite: Suite) -> None:
    live = ("--gate=fail", "--gate-against=HEAD", "--gate-launches=5+2", "--gate-json=v.json")
    refused(suite.run(*live), OK, "PASS")
    order = json.loads((suite.folder / "v.json").read_text())["order"]
    assert len(order["ran"]) == 10
    again = suite.run(*live[:3], "--gate-json=w.json", f"--gate-order-seed={order['seed']}")
    refused(again, OK, "PASS")
    assert json.loads((suite.folder / "w.json").read_text())["order"] == order
    refused(suite.run(*live, "--gate-order-seed=x"), USAGE, "--gate-order-seed is 'x'; expected a whole number")


def test_an_anchor_is_a_file_of_launches_that_is_there(suite: Suite) -> None:
    save_baselines(suite, 5)
    refused(suite.run(*GATED, "--gate-anchor=no.json"), USAGE, "--gate-anchor 'no.json' is no file", "--gate-save")
    refused(suite.run("--gate-anchor=gate.json"), USAGE, "--gate-anchor without --gate would gate nothing")
    # A plain benchmark has no control, so that its drift cannot be told from another day's machine.
    refused(suite.run(*GATED, "--gate-anchor=gate.json"), FAILED, "no row can be held against the anchor")
