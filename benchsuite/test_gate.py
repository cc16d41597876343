"""The gate as its users meet it: verdict, message and exit code; beside it, what pytest-benchmark's own gate says.

The suites measured here keep a clock of their own, so that "6 % slower" is exact and no test depends on the machine.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchsuite.conftest import Run

pytestmark = pytest.mark.slow

TESTS = """
import json, os, pytest
now = 0.0
def clock():
    return now
noise = {noise}
launch = len(os.listdir(os.environ["LAUNCHES"])) if noise else 0
if noise:
    open(os.path.join(os.environ["LAUNCHES"], str(launch)), "w").close()
def work():
    global now
    now += {seconds} * (1 + noise * (-1) ** launch)
{mark}
@pytest.mark.benchmark(timer=clock)
def test_{name}(benchmark):
    {body}
    benchmark.pedantic(work, rounds=5)
"""
OK, FAILED, USAGE = 0, 1, 4
NO_PLUGINS = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-q", "--benchmark-quiet")

Done = subprocess.CompletedProcess[str]


@dataclass
class Suite:
    """A folder with one benchmark that takes as long as it says, under git."""

    folder: Path
    python: Run

    def write(
        self, seconds: float = 1.0, name: str = "work", noise: float = 0.0, mark: str = "", body: str = "pass"
    ) -> None:
        """Say how long the benchmark takes."""
        text = TESTS.format(seconds=seconds, name=name, noise=noise, mark=mark, body=body)
        (self.folder / "test_theirs.py").write_text(text)

    def commit(self) -> None:
        """Commit what was written."""
        for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "--allow-empty", "-m", "a step"]):
            identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
            subprocess.run(["git", *identity, *words], cwd=self.folder, check=True, capture_output=True)

    def run(self, *arguments: str) -> Done:
        """pytest with the gate."""
        launches = self.folder / "launches"
        launches.mkdir(exist_ok=True)
        return self.python("-m", "pytest", *NO_PLUGINS, *arguments, LAUNCHES=str(launches))

    def theirs(self, *arguments: str) -> Done:
        """pytest-benchmark's gate, at one percent, the least it takes."""
        given = ("--benchmark-compare", "--benchmark-compare-fail=mean:1%")
        return self.run("--gate=off", "--benchmark-storage=stored", *given, *arguments)


@pytest.fixture
def suite(run: Run, tmp_path: Path) -> Suite:
    """A suite whose benchmark takes a second, committed."""
    made = Suite(tmp_path, run)
    made.write()
    made.commit()
    return made


def saved(suite: Suite, launches: int = 1) -> None:
    """A baseline of both gates; its clock being exact, one launch stands for several."""
    done = suite.run("--gate-save", "gate.json", "--benchmark-storage=stored", "--benchmark-autosave")
    assert done.returncode == OK, done.stdout + done.stderr
    assert "1 launches" in done.stdout
    content = json.loads((suite.folder / "gate.json").read_text())
    for row in content["rows"].values():
        row["launches"] *= launches
    (suite.folder / "gate.json").write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


def refused(done: Done, code: int, *texts: str) -> None:
    """The run ended with the code, and says all of the texts on one of its two outputs."""
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == code, said
    for text in texts:
        assert text in said, f"{text!r} is not in: {said}"


GATED = ("--gate=fail", "--gate-against", "gate.json", "--gate-dedicated", "--gate-launches", "5+2")


def test_equal_times_pass_and_a_slowdown_fails_with_what_and_how_much(suite: Suite) -> None:
    made = suite.run("--gate-save", "gate.json", "--gate-launches", "5")
    assert "1 rows, 5 launches" in made.stdout
    refused(suite.run(*GATED), OK, "PASS")
    suite.write(seconds=1.06)
    refused(
        suite.run(*GATED), FAILED, "REGRESSED", "+6.0% seconds per token", "beyond the tolerance of 3.0%",
        "FAILED gate::test_theirs.py::test_work",
    )  # fmt: skip


def test_a_revision_is_measured_live_beside_the_working_tree(suite: Suite) -> None:
    suite.write(seconds=1.06)
    live = ("--gate=fail", "--gate-launches=5+2", "--gate-against")
    refused(suite.run(*live, "HEAD"), FAILED, "REGRESSED", "+6.0% seconds per token", "7 and 7 launches")
    left = subprocess.run(["git", "worktree", "list"], cwd=suite.folder, capture_output=True, text=True, check=True)
    assert len(left.stdout.splitlines()) == 1, "a worktree was left behind"


def test_a_gain_is_never_taken_silently(suite: Suite) -> None:
    saved(suite, 5)
    before = (suite.folder / "gate.json").read_text()
    suite.write(seconds=0.9)
    refused(suite.run(*GATED), OK, "IMPROVED", "--gate-update")
    assert (suite.folder / "gate.json").read_text() == before
    refused(suite.run(*GATED, "--gate-update"), OK, "the baseline is now this run")
    assert '"seconds": 0.9' in (suite.folder / "gate.json").read_text()


def test_no_row_in_common_fails_where_pytest_benchmark_passes(suite: Suite) -> None:
    saved(suite)
    suite.write(seconds=9.0, name="other")
    refused(suite.run(*GATED[:3]), FAILED, "ERROR", "baseline and run have no row in common")
    refused(suite.theirs(), OK, "1 passed")


def test_a_renamed_row_fails_with_its_old_name_where_pytest_benchmark_passes(suite: Suite) -> None:
    saved(suite)
    suite.write(seconds=9.0, name="work_renamed")
    refused(
        suite.run(*GATED[:3]),
        FAILED,
        "ERROR",
        "the baseline has no such row",
        "test_work', which this run has not: renamed?",
    )
    refused(suite.theirs(), OK, "1 passed")
    refused(suite.run(*GATED[:3], "--gate=report"), OK, "ERROR", "nothing fails")


def test_a_missing_baseline_is_a_usage_error_that_may_be_made_by_request(suite: Suite) -> None:
    """pytest-benchmark refuses this one too, since 5.3."""
    refused(suite.run(*GATED[:3]), USAGE, "neither a file nor a revision", "--gate-save gate.json")
    refused(suite.run(*GATED[:3], "--gate-on-missing=save"), OK, "made the baseline that was not there")
    assert json.loads((suite.folder / "gate.json").read_text())["format"] == "specdec-gate"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda text: text[: len(text) // 2], "is corrupt"),
        (lambda text: text.replace('"version": 1', '"version": 2'), "its version is 2, expected 1"),
        (lambda text: text.replace('"seconds"', '"second"'), "a launch of 'test_theirs.py::test_work' has"),
        (lambda text: text.replace('"seconds": 1.0', '"seconds": NaN'), "it holds NaN"),
        (lambda text: "{}", "it is not a baseline of this gate"),
    ],
)
def test_a_corrupt_baseline_is_a_usage_error(suite: Suite, spoil: Callable[[str], str], message: str) -> None:
    saved(suite)
    file = suite.folder / "gate.json"
    file.write_text(spoil(file.read_text()))
    refused(suite.run(*GATED[:3]), USAGE, "is corrupt", message, "--gate-save")


def test_another_machine_is_a_usage_error_where_pytest_benchmark_passes(suite: Suite) -> None:
    saved(suite, 5)
    for file in (suite.folder / "gate.json", next((suite.folder / "stored").rglob("*.json"))):
        content = json.loads(file.read_text())
        if "made" in content:
            content["made"]["machine"]["processor"] = "another"
        else:
            content["machine_info"]["cpu"]["brand_raw"] = "another"
        file.write_text(json.dumps(content))
    suite.write(seconds=1.0)
    refused(suite.run(*GATED), USAGE, "made on another machine", "'another' there", "--gate-on-mismatch")
    refused(suite.theirs(), OK, "1 passed")
    refused(suite.run(*GATED, "--gate-on-mismatch=counters"), FAILED, "nothing of it can be compared at levels 0")


@pytest.mark.parametrize("option", ["--benchmark-disable", "--benchmark-skip"])
def test_disabled_benchmarks_are_a_usage_error_where_pytest_benchmark_passes(suite: Suite, option: str) -> None:
    saved(suite)
    suite.write(seconds=9.0)
    refused(suite.run(*GATED[:3], option), USAGE, f"{option} is given", "nothing would be measured")
    refused(suite.theirs(option), OK)


def test_xdist_is_a_usage_error_where_pytest_benchmark_passes(suite: Suite) -> None:
    pytest.importorskip("xdist")
    saved(suite)
    suite.write(seconds=9.0)
    refused(suite.run(*GATED[:3], "-n", "1"), USAGE, "pytest-xdist is active", "gate without -n")
    refused(suite.theirs("-n", "1"), OK, "1 passed")


def test_nothing_but_skips_fails_with_the_reason_where_pytest_benchmark_passes(suite: Suite) -> None:
    saved(suite)
    suite.write(body="pytest.skip('no such device')")
    reason = "its test was skipped: Skipped: no such device"
    refused(suite.run(*GATED[:3]), FAILED, "ERROR", "nothing was measured", reason)
    refused(suite.theirs(), OK, "1 skipped")
    refused(suite.run(*GATED[:3], "--gate-update"), FAILED, "nothing was measured")
    made = ("--gate=fail", "--gate-against=new.json", "--gate-on-missing=save")
    refused(suite.run(*made), FAILED, "nothing was measured")
    assert not (suite.folder / "new.json").exists()


def test_a_run_without_benchmarks_is_a_usage_error(suite: Suite) -> None:
    saved(suite)
    (suite.folder / "test_other.py").write_text("def test_other(): pass\n")
    refused(suite.run(*GATED[:3], "test_other.py"), USAGE, "this run has no benchmarks")
    assert suite.theirs("test_other.py").returncode == OK


def test_what_is_too_noisy_to_decide_does_not_pass(suite: Suite) -> None:
    suite.write(noise=0.1)
    suite.commit()
    live = ("--gate=fail", "--gate-against=HEAD", "--gate-launches=5+2")
    refused(suite.run(*live), FAILED, "INCONCLUSIVE", "too noisy to exclude a slowdown of 6.0%", "7 and 7 launches")


def test_a_plain_benchmark_against_a_file_of_another_day_is_not_passed_over(suite: Suite) -> None:
    saved(suite)
    refused(suite.run(*GATED[:3]), FAILED, "ERROR", "a plain benchmark has no counters", "--gate-dedicated")
    refused(suite.run(*GATED[:3], "--gate-level=2"), USAGE, "level 2 measures both sides live")
    refused(suite.run(*GATED[:3], "--gate-level=1"), USAGE, "holds 1 launches of a row and level 1 takes 5")


def test_the_marker_gives_a_row_its_own_tolerance_and_level(suite: Suite) -> None:
    saved(suite, 5)
    suite.write(seconds=1.06, mark="@pytest.mark.gate(tolerance=0.1)")
    refused(suite.run(*GATED), OK, "PASS", "+6.0%")
    suite.write(mark="@pytest.mark.gate(tolerence=0.1)")
    refused(suite.run(*GATED), USAGE, "the marker gate takes tolerance=", "tolerence")
    suite.write(mark="@pytest.mark.gate(tolerance=5)")
    refused(suite.run(*GATED), USAGE, "0.03 is 3 %")


def test_a_launch_that_fails_is_told_with_its_last_lines(suite: Suite) -> None:
    suite.write(body="assert False, 'broken at base'")
    suite.commit()
    suite.write()
    refused(suite.run("--gate=fail", "--gate-against=HEAD"), FAILED, "ERROR", "a launch of the base", "broken at base")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--gate",), "--gate needs something to hold this run against"),
        (("--gate=maybe",), "expected one of off, report, fail"),
        (("--gate=fail", "--gate-against=HEAD", "--gate-tolerance=3"), "0.03 is 3 %"),
        (("--gate=fail", "--gate-against=HEAD", "--gate-launches=5+x"), "expected FIRST+MORE"),
        (("--gate=fail", "--gate-against=HEAD", "--gate-launches=3+2"), "give at least 5 first and 7 in all"),
        (("--gate-against=HEAD",), "--gate-against without --gate would gate nothing"),
        (("--gate-self-test", "--gate-update"), "without --gate would gate nothing"),
        (("--gate-save=new.json", "--gate-against=HEAD"), "without --gate would only save"),
        (("--gate=fail", "--gate-against=HEAD", "--gate-level=4"), "expected 0, 1 or 2"),
        (("--gate=fail", "--gate-against=HEAD", "--gate-export=xml=a"), "github-action-benchmark"),
        (("--gate=fail", "--gate-against=HEAD", "--gate-inconclusive=pass"), "expected one of fail, report"),
        (("--gate=fail", "--gate-against=HEAD", "--gate-update"), "writes over a baseline file"),
        (("--gate-save=test_theirs.py",), "is there already"),
        (("--gate-save=no/such/folder.json",), "there is no folder"),
    ],
)
def test_a_wrong_option_is_refused_with_what_was_expected(suite: Suite, options: tuple[str, ...], message: str) -> None:
    refused(suite.run(*options), USAGE, message)


def test_leaving_gate_items_out_does_not_pass(suite: Suite) -> None:
    saved(suite)
    refused(suite.run(*GATED[:3], "--setup-only"), FAILED, "no gate item ran, so nothing was compared")
    failed = suite.python("-m", "pytest", "-q", *GATED[:3])
    refused(failed, FAILED, "nothing of it can be compared")
    refused(suite.python("-m", "pytest", "-q", *GATED[:3], "--lf"), FAILED, "nothing was measured")


def test_an_expected_failure_and_a_hidden_benchmark_do_not_pass(suite: Suite) -> None:
    saved(suite)
    suite.write(mark="@pytest.mark.xfail(reason='known')", body="assert False")
    refused(suite.run(*GATED[:3]), FAILED, "its test was skipped: ")
    suite.write()
    hidden = "def test_hidden(request):\n    request.getfixturevalue('benchmark').pedantic(print, rounds=3)\n"
    (suite.folder / "test_hidden.py").write_text(hidden)
    refused(suite.run(*GATED[:3]), FAILED, "not by a test that the gate knows: test_hidden.py::test_hidden")


def test_a_part_of_a_suite_is_not_written_over_the_whole(suite: Suite) -> None:
    suite.write(body="pass\n    benchmark.pedantic(work, rounds=5)\ndef test_other(benchmark):\n    pass")
    saved(suite, 5)
    before = (suite.folder / "gate.json").read_text()
    refused(
        suite.run(*GATED, "--gate-update", "-k", "test_work"), FAILED, "1 rows of the baseline are gone", "not written"
    )
    assert (suite.folder / "gate.json").read_text() == before
    suite.write(body="assert False")
    refused(suite.run(*GATED[:3], "--gate-update"), FAILED, "not written")
    refused(suite.run("--gate-save=new.json"), FAILED, "some test failed, so nothing is written")
    assert (suite.folder / "gate.json").read_text() == before


def test_a_base_that_would_run_the_heads_code_is_told(suite: Suite) -> None:
    source = suite.folder / "src"
    source.mkdir()
    (source / "helper.py").write_text("")
    (suite.folder / "test_theirs.py").write_text("import helper\n" + (suite.folder / "test_theirs.py").read_text())
    suite.commit()
    live = ("--gate=fail", "--gate-against=HEAD", "--gate-level=0,2", "--gate-launches=5+2")
    environment = {"LAUNCHES": str(suite.folder), "PYTHONPATH": str(source)}
    told = suite.python("-m", "pytest", *NO_PLUGINS, *live, **environment)
    refused(told, FAILED, "module 'helper' comes from", "--gate-path")
    (suite.folder / "pytest.ini").write_text("[pytest]\ngate_path = src\n")
    refused(
        suite.python("-m", "pytest", *NO_PLUGINS, *live, **environment), OK, "PASS", "base and head are the same commit"
    )


def test_a_launch_keeps_the_options_of_ini_file_and_environment(suite: Suite) -> None:
    (suite.folder / "pytest.ini").write_text("[pytest]\naddopts = --ignore=test_broken.py\n")
    (suite.folder / "test_broken.py").write_text("1 / 0\n")
    (suite.folder / "test_other.py").write_text("def test_other(): assert False\n")
    suite.commit()
    live = ("--gate=fail", "--gate-against=HEAD", "--gate-launches=5+2", *NO_PLUGINS)
    environment = {"LAUNCHES": str(suite.folder), "PYTEST_ADDOPTS": "-k test_work --gate-pairs 1"}
    refused(suite.python("-m", "pytest", *live, **environment), OK, "PASS", "at levels 0, 2")


def test_verdicts_are_exported_for_other_programs(suite: Suite) -> None:
    saved(suite, 5)
    suite.write(seconds=1.06)
    formats = {"bmf": "a.json", "github-action-benchmark": "b.json", "markdown": "c.md", "junit": "d.xml"}
    chosen = ",".join(f"{kind}={file}" for kind, file in formats.items())
    refused(suite.run(*GATED, f"--gate-export={chosen}", "--gate-json=e.json"), FAILED, "junit:", "verdicts:")
    a, b, c, d, e = ((suite.folder / file).read_text() for file in (*formats.values(), "e.json"))
    assert json.loads(a)["test_theirs.py::test_work"]["change-level-3"]["value"] == pytest.approx(0.06)
    assert json.loads(b)[0]["value"] == 6.0
    assert "## Gate: REGRESSED" in c
    assert ElementTree.fromstring(d).get("failures") == "1"
    assert json.loads(e)["verdict"] == "REGRESSED"
    assert json.loads(e)["base"]["commit"]


def test_a_baseline_is_written_whole_or_not_at_all(suite: Suite) -> None:
    saved(suite)
    text = (suite.folder / "gate.json").read_text()
    assert text == json.dumps(json.loads(text), indent=1, sort_keys=True) + "\n", "it would not show well in a diff"
    assert [p.name for p in suite.folder.iterdir() if p.name.startswith(".gate")] == []
    refused(suite.run("--gate-save=gate.json"), USAGE, "is there already")
    assert (suite.folder / "gate.json").read_text() == text


TINY = (
    "--pyargs", "benchsuite.test_speculation", "--specdec-target", "tiny", "--specdec-workload", "chat",
    "--specdec-draft", "oracle(0.8)", "--specdec-peer", "none", "--specdec-max-new-tokens", "48",
)  # fmt: skip


def test_counters_of_our_rows_gate_exactly_and_a_hundredth_less_acceptance_is_caught(run: Run, tmp_path: Path) -> None:
    def gated(*options: str) -> Done:
        return run("-m", "pytest", *NO_PLUGINS, *TINY, *options)

    made = gated("--gate-save=gate.json", "--gate-pairs=1")
    assert made.returncode == OK, made.stdout + made.stderr
    against = ("--gate=fail", "--gate-against=gate.json")
    refused(gated(*against), OK, "PASS", "at levels 0")
    refused(
        gated(*against, "--gate-plant=acceptance=0.01"), FAILED, "REGRESSED at level 0",
        "num_accepted_tokens_per_pos was", "where: acceptance", "1 failed",
    )  # fmt: skip
    refused(gated(*against, "--specdec-peer=transformers"), OK, "PASS")
    refused(gated(*against, "--specdec-prompts=1"), FAILED, "ERROR", "measured otherwise", "prompts 3 there and 1 here")
    file = tmp_path / "gate.json"
    content = json.loads(file.read_text())
    for row in content["rows"].values():
        row["plain_digest"] = row["digest"] = "another"
    file.write_text(json.dumps(content))
    refused(gated(*against), FAILED, "INCONCLUSIVE at level 0", "numerics: plain decoding itself emits other tokens")
    refused(gated(*against, "--gate-inconclusive=report"), OK, "INCONCLUSIVE")
