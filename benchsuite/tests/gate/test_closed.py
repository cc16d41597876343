"""Cases that do not pass the gate: verdict, message and exit code, next to the result of pytest-benchmark's gate."""

from __future__ import annotations

import json
from collections.abc import Callable

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

pytestmark = pytest.mark.slow


def test_no_row_in_common_fails_where_pytest_benchmark_passes(suite: Suite) -> None:
    save_baselines(suite)
    suite.write(seconds=9.0, name="other")
    refused(suite.run(*GATED[:3]), FAILED, "ERROR", "baseline and run have no row in common")
    refused(suite.theirs(), OK, "1 passed")


def test_a_renamed_row_fails_with_its_old_name_where_pytest_benchmark_passes(suite: Suite) -> None:
    save_baselines(suite)
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
    """pytest-benchmark refuses this case too, since 5.3."""
    refused(suite.run(*GATED[:3]), USAGE, "neither a file nor a revision", "--gate-save gate.json")
    refused(
        suite.run(*GATED[:3], "--gate-on-missing=save"),
        OK,
        "made the baseline that was not there",
        "nothing was compared",
    )
    assert json.loads((suite.folder / "gate.json").read_text())["format"] == "specdec-gate"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda text: text[: len(text) // 2], "is corrupt"),
        (lambda text: text.replace('"version": 4', '"version": 3'), "its version is 3, expected 4"),
        (
            lambda text: text.replace('"seconds": [', '"second": ['),
            "seconds of a launch of 'test_theirs.py::test_work' has",
        ),
        (lambda text: text.replace("1.0", "NaN"), "NaN is no number"),
        (lambda text: "{}", "it is not a baseline of this gate"),
    ],
)
def test_a_corrupt_baseline_is_a_usage_error(suite: Suite, spoil: Callable[[str], str], message: str) -> None:
    save_baselines(suite)
    file = suite.folder / "gate.json"
    file.write_text(spoil(file.read_text()))
    refused(suite.run(*GATED[:3]), USAGE, "is corrupt", message, "--gate-save")


def test_another_machine_is_a_usage_error_where_pytest_benchmark_passes(suite: Suite) -> None:
    save_baselines(suite, 5)
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
    save_baselines(suite)
    suite.write(seconds=9.0)
    refused(suite.run(*GATED[:3], option), USAGE, f"{option} is given", "nothing would be measured")
    refused(suite.theirs(option), OK)


def test_xdist_is_a_usage_error_where_pytest_benchmark_passes(suite: Suite) -> None:
    pytest.importorskip("xdist")
    save_baselines(suite)
    suite.write(seconds=9.0)
    spread = ("-p", "xdist", "-n", "1")
    refused(suite.run(*GATED[:3], *spread), USAGE, "pytest-xdist is active", "gate without -n")
    refused(suite.theirs(*spread), OK, "1 passed")


def test_nothing_but_skips_fails_with_the_reason_where_pytest_benchmark_passes(suite: Suite) -> None:
    save_baselines(suite)
    suite.write(body="pytest.skip('no such device')")
    reason = "its test was skipped: Skipped: no such device"
    refused(suite.run(*GATED[:3]), FAILED, "ERROR", "nothing was measured", reason)
    refused(suite.theirs(), OK, "1 skipped")
    refused(suite.run(*GATED[:3], "--gate-update"), FAILED, "nothing was measured")
    made = ("--gate=fail", "--gate-against=new.json", "--gate-on-missing=save")
    refused(suite.run(*made), FAILED, "nothing was measured")
    assert not (suite.folder / "new.json").exists()


def test_a_run_without_benchmarks_is_a_usage_error(suite: Suite) -> None:
    save_baselines(suite)
    (suite.folder / "test_other.py").write_text("def test_other(): pass\n")
    refused(suite.run(*GATED[:3], "test_other.py"), USAGE, "this run has no benchmarks")
    assert suite.theirs("test_other.py").returncode == OK


def test_what_is_too_noisy_to_decide_does_not_pass(theirs: Suite) -> None:
    theirs.write(noise=0.1)
    theirs.commit()
    live = ("--gate=fail", "--gate-against=HEAD", "--gate-launches=5+2")
    refused(theirs.run(*live), FAILED, "INCONCLUSIVE", "too noisy to exclude a slowdown of 6.0%", "7 and 7 launches")


def test_a_plain_benchmark_against_a_file_of_another_day_is_not_passed_over(suite: Suite) -> None:
    save_baselines(suite)
    refused(suite.run(*GATED[:3]), FAILED, "ERROR", "a plain benchmark has no counters", "--gate-dedicated")
    refused(suite.run(*GATED[:3], "--gate-level=2"), USAGE, "level 2 measures both sides live")
    refused(suite.run(*GATED[:3], "--gate-level=1"), USAGE, "holds 1 launch of a row and level 1 takes 5")


def test_a_launch_that_fails_is_told_with_its_last_lines(theirs: Suite) -> None:
    theirs.write(body="assert False, 'broken at base'")
    theirs.commit()
    theirs.write()
    refused(theirs.run("--gate=fail", "--gate-against=HEAD"), FAILED, "ERROR", "a launch of the base", "broken at base")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--gate",), "--gate needs something to compare this run with"),
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
        (("--gate=fail", "--gate-against=HEAD", "--gate-on-missing=old"), "expected one of fail, new, report, save"),
        (("--gate=fail", "--gate-against=HEAD", "--gate-environment=mine"), "expected one of shared, own"),
        (("--gate=fail", "--gate-against=HEAD", "--gate-update"), "writes over a baseline file"),
        (("--gate-save=test_theirs.py",), "is there already"),
        (("--gate-save=no/such/folder.json",), "there is no folder"),
        (("--gate=fail", "--gate-against=HEAD", "--gate-json=no/such.json"), "--gate-json no/such.json: there is no"),
        (("--gate=fail", "--gate-against=HEAD", "--gate-export=bmf=a,junit=no/such.xml"), "there is no folder"),
        (("--gate=fail", "--gate-against=HEAD", "--gate-json=."), "is a folder; name a file"),
        (("--gate=fail", "--gate-against=."), "is a folder; expected a baseline file in it"),
        (("--gate=fail", "--gate-against=no/such.json", "--gate-on-missing=save"), "there is no folder"),
        (("--gate=fail", "--gate-against=maim", "--gate-on-missing=save"), "git fetch"),
        (("--gate=fail", "--gate-against=HEAD", "no/such_test.py"), "file or directory not found"),
    ],
)
def test_a_wrong_option_is_refused_with_what_was_expected(suite: Suite, options: tuple[str, ...], message: str) -> None:
    refused(suite.run(*options), USAGE, message)


def test_leaving_gate_items_out_does_not_pass(suite: Suite) -> None:
    save_baselines(suite)
    refused(suite.run(*GATED[:3], "--setup-only"), FAILED, "no gate item ran, so nothing was compared")
    failed = suite.python("-m", "pytest", "-q", *GATED[:3])
    refused(failed, FAILED, "nothing of it can be compared")
    refused(suite.python("-m", "pytest", "-q", *GATED[:3], "--lf"), FAILED, "nothing was measured")


def test_an_expected_failure_and_a_hidden_benchmark_do_not_pass(suite: Suite) -> None:
    save_baselines(suite)
    suite.write(mark="@pytest.mark.xfail(reason='known')", body="assert False")
    refused(suite.run(*GATED[:3]), FAILED, "its test was skipped: ")
    suite.write()
    hidden = "def test_hidden(request):\n    request.getfixturevalue('benchmark').pedantic(print, rounds=3)\n"
    (suite.folder / "test_hidden.py").write_text(hidden)
    refused(suite.run(*GATED[:3]), FAILED, "not by a test that the gate knows: test_hidden.py::test_hidden")


def test_a_part_of_a_suite_is_not_written_over_the_whole(theirs: Suite) -> None:
    theirs.write(body="pass\n    benchmark.pedantic(work, rounds=5)\ndef test_other(benchmark):\n    pass")
    save_baselines(theirs, 5)
    before = (theirs.folder / "gate.json").read_text()
    refused(
        theirs.run(*GATED, "--gate-update", "-k", "test_work"), FAILED, "1 row of the baseline is gone", "not written"
    )
    assert (theirs.folder / "gate.json").read_text() == before
    theirs.write(body="assert False")
    refused(theirs.run(*GATED[:3], "--gate-update"), FAILED, "not written")
    refused(theirs.run("--gate-save=new.json"), FAILED, "some test failed, so nothing is written")
    assert (theirs.folder / "gate.json").read_text() == before


def test_a_base_that_would_run_the_heads_code_is_told(theirs: Suite) -> None:
    source = theirs.folder / "src"
    source.mkdir()
    (source / "helper.py").write_text("")
    (theirs.folder / "test_theirs.py").write_text("import helper\n" + (theirs.folder / "test_theirs.py").read_text())
    theirs.commit()
    live = ("--gate=fail", "--gate-against=HEAD", "--gate-level=0,2", "--gate-launches=5+2")
    lost = theirs.run(*live, "--gate-path=.", PYTHONPATH=with_path(source))
    refused(lost, FAILED, "module 'helper' comes from", "--gate-path")
    told = [line for line in lost.stdout.splitlines() if "module 'helper' comes from" in line]
    assert told[0].startswith("gate: ERROR: a launch of the base was refused: a launch would measure other code")
    assert lost.stdout.index(told[0]) < lost.stdout.index("FAILURES"), "the reason comes before everything else"
    for ini in ("gate_path = src", "gate_path = ", "gate_path = src .", "# found by itself"):
        (theirs.folder / "pytest.ini").write_text(f"[pytest]\n{ini}\n")
        own = theirs.run(*live, PYTHONPATH=with_path(source))
        refused(own, OK, "PASS", "base and head are the same commit")


def test_without_git_a_baseline_is_made_and_a_revision_refused(suite: Suite) -> None:
    def run(*options: str) -> Done:
        return suite.python("-m", "pytest", *NO_PLUGINS, *options, PATH=str(suite.folder), LAUNCHES=str(suite.folder))

    refused(run("--gate-save=gate.json"), OK, "saved gate.json: ")
    refused(run("--gate=fail", "--gate-against=HEAD"), USAGE, "neither a file nor a revision that git knows here")


def test_launches_too_few_for_so_many_rows_are_refused(suite: Suite) -> None:
    suite.write(body="pass\n    benchmark.pedantic(work, rounds=5)\ndef test_other(benchmark):\n    pass")
    live = ("--gate=fail", "--gate-against=HEAD", "--gate-launches=5+2")
    refused(suite.run(*live), USAGE, "can show nothing of 2 rows", "5 first and 8 in all")


def test_a_self_test_without_a_draft_to_slow_down_fails(suite: Suite) -> None:
    refused(suite.run("--gate=fail", "--gate-self-test"), FAILED, "no row has a control and a draft")
