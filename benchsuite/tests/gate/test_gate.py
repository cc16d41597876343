"""The gate as users run it: verdicts, baselines, two checkouts, and the files that it writes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchsuite.tests.gate_rig import (
    FAILED,
    GATED,
    NO_PLUGINS,
    OK,
    USAGE,
    Done,
    Suite,
    refused,
    save_baselines,
    with_path,
)
from benchsuite.tests.rig import Run

pytestmark = pytest.mark.slow


def test_launches_of_a_revision_have_its_code_and_the_options_of_ini_file_and_environment(suite: Suite) -> None:
    """In processes. The working tree's package is on the path of all; its work takes 2 % longer than the revision's.
    No launch imports torch, which would take most of its time."""
    source = suite.folder / "src"
    source.mkdir()
    (source / "torch.py").write_text("raise SystemError('torch was imported')")
    (source / "helper.py").write_text("SECONDS = 1.0\n")
    theirs = suite.folder / "test_theirs.py"
    theirs.write_text("import helper\n" + theirs.read_text().replace("now += 1.0", "now += helper.SECONDS"))
    (suite.folder / "pytest.ini").write_text("[pytest]\naddopts = --ignore=test_broken.py\ngate_path = src\n")
    (suite.folder / "test_broken.py").write_text("1 / 0\n")
    (suite.folder / "test_other.py").write_text("def test_other(): assert False\n")
    suite.commit()
    (source / "helper.py").write_text("SECONDS = 1.02\n")
    live = ("--gate=fail", "--gate-against=HEAD", "--gate-launches=5+2")
    variables = {"PYTEST_ADDOPTS": "-k test_work --gate-pairs 1", "PYTHONPATH": with_path(source)}
    done = suite.run(*live, **variables)
    refused(done, OK, "gate: pair 5 of 5", "+2.0%", "PASS: 1 row at level 2 ")
    left = subprocess.run(["git", "worktree", "list"], cwd=suite.folder, capture_output=True, text=True, check=True)
    assert len(left.stdout.splitlines()) == 1, "a worktree was left behind"


def test_a_gain_is_never_taken_silently(theirs: Suite) -> None:
    save_baselines(theirs, 5)
    before = (theirs.folder / "gate.json").read_text()
    theirs.write(seconds=0.9)
    refused(theirs.run(*GATED), OK, "IMPROVED", "--gate-update")
    assert (theirs.folder / "gate.json").read_text() == before
    refused(theirs.run(*GATED, "--gate-update"), OK, "the baseline is now this run")
    assert "0.9\n" in (theirs.folder / "gate.json").read_text()


def test_verdicts_are_exported_for_other_programs(theirs: Suite) -> None:
    save_baselines(theirs, 5)
    theirs.write(seconds=1.06)
    formats = {"bmf": "a.json", "github-action-benchmark": "b.json", "markdown": "c.md", "junit": "d.xml"}
    chosen = ",".join(f"{kind}={file}" for kind, file in formats.items())
    refused(theirs.run(*GATED, f"--gate-export={chosen}", "--gate-json=e.json"), FAILED, "junit:", "verdicts:")
    a, b, c, d, e = ((theirs.folder / file).read_text() for file in (*formats.values(), "e.json"))
    assert json.loads(a)["test_theirs.py::test_work"]["seconds-level-3"]["value"] == pytest.approx(0.06)
    assert [one["value"] for one in json.loads(b)] == [pytest.approx(1.06)] * 2, "its mean too"
    assert "## Gate: REGRESSED" in c
    assert ElementTree.fromstring(d).get("failures") == "1"
    assert json.loads(e)["verdict"] == "REGRESSED"
    assert json.loads(e)["base"]["commit"]


def test_a_baseline_is_written_whole_or_not_at_all(theirs: Suite) -> None:
    save_baselines(theirs)
    text = (theirs.folder / "gate.json").read_text()
    assert text == json.dumps(json.loads(text), indent=1, sort_keys=True) + "\n", "it would not show well in a diff"
    assert [p.name for p in theirs.folder.iterdir() if p.name.startswith(".gate")] == []
    refused(theirs.run("--gate-save=gate.json"), USAGE, "is there already")
    assert (theirs.folder / "gate.json").read_text() == text


TINY = ("--pyargs", "benchsuite.test_speculation", "--specdec-target=tiny", "--gate-pairs=1")
AGAINST = ("--gate=fail", "--gate-against=gate.json")


def test_counters_of_our_rows_gate_exactly_and_a_hundredth_less_acceptance_is_caught(run: Run, tmp_path: Path) -> None:
    def gated(*options: str) -> Done:
        long = ("--specdec-workload=chat", "--specdec-draft=oracle(0.8)", "--specdec-prompts=6")
        return run("-m", "pytest", *NO_PLUGINS, *TINY, *long, "--specdec-max-new-tokens=48", *options)

    made = gated("--specdec-peer=none", "--gate-save=gate.json")
    assert made.returncode == OK, made.stdout + made.stderr
    # A peer changes no counter.
    exported = ("--gate-export=bmf=a.json,github-action-benchmark=b.json", "--specdec-peer=transformers")
    refused(
        gated(*AGAINST, *exported),
        OK,
        "PASS",
        "2 rows at level 0 against",
        "not gated (peers): transformers",
    )
    assert {tuple(row) for row in json.loads((tmp_path / "a.json").read_text()).values()} == {("fails-level-0",)}
    assert {one["value"] for one in json.loads((tmp_path / "b.json").read_text())} == {1.0}
    refused(
        gated(*AGAINST, "--specdec-peer=none", "--gate-plant=acceptance=0.01"),
        FAILED,
        "REGRESSED at level 0",
        "num_accepted_tokens_per_pos was",
        "where: acceptance",
        "1 failed",
    )
    none = gated(*AGAINST, "--specdec-peer=none", "--gate-plant=acceptance=0.2#9")
    refused(none, USAGE, "would slow down nothing: no such draft, prompt")


def test_rows_of_other_work_inputs_kernels_or_numerics_do_not_pass(run: Run, tmp_path: Path) -> None:
    file, baseline = tmp_path / "asked.jsonl", tmp_path / "gate.json"
    asked = '{"turns": ["Name a river."]}\n{"turns": ["Name a lake."]}\n'

    def gated(*options: str, **environment: str) -> Done:
        few = ("--specdec-workload=asked.jsonl", "--specdec-draft=ngram", "--specdec-peer=none", "--specdec-prompts=2")
        return run("-m", "pytest", *NO_PLUGINS, *TINY, *few, "--specdec-max-new-tokens=4", *options, **environment)

    file.write_text(asked)
    made = gated("--gate-save=gate.json")
    assert made.returncode == OK, made.stdout + made.stderr
    refused(gated(*AGAINST, "--specdec-prompts=1"), FAILED, "ERROR", "measured otherwise", "prompts 2 there and 1 here")
    # Without kernels the row is another on the same machine, whatever its tokens.
    lost = gated(*AGAINST, SPECDEC_FORCE_PY="1")
    refused(lost, FAILED, "REGRESSED at level 0", "on cpu ran", "does not any more", "where: kernels")
    # The same number of prompts with another word: it was called numerics, which CI lets through.
    file.write_text(asked.replace("lake", "hill"))
    edited = gated(*AGAINST, "--gate-inconclusive=report")
    refused(edited, FAILED, "ERROR", "measured otherwise than the baseline: other prompts")
    file.write_text(asked)
    content = json.loads(baseline.read_text())
    said = ("INCONCLUSIVE at level 0", "numerics: plain decoding itself emits other tokens")
    # Other tokens of one row are let through; of every row, nothing is left that was judged.
    for row, code, more in zip(
        content["rows"].values(), (OK, FAILED), ("let through", "nothing was judged"), strict=True
    ):
        row["plain_digest"] = row["digest"] = "another"
        baseline.write_text(json.dumps(content))
        refused(gated(*AGAINST, "--gate-inconclusive=report"), code, *said, more)


def test_an_anchor_is_a_file_of_launches_that_is_there(theirs: Suite) -> None:
    save_baselines(theirs, 5)
    refused(theirs.run(*GATED, "--gate-anchor=no.json"), USAGE, "--gate-anchor 'no.json' is no file", "--gate-save")
    refused(theirs.run("--gate-anchor=gate.json"), USAGE, "--gate-anchor without --gate would gate nothing")
    # A plain benchmark has no control, so that its drift cannot be told from another day's machine.
    refused(theirs.run(*GATED, "--gate-anchor=gate.json"), FAILED, "no row can be held against the anchor")
