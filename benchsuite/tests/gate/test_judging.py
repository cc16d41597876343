"""The gate inside pytest, in a run that is made up: which rows it waits for, why one is lacking, what it writes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchsuite.gate.record import CALL, GateError, Record
from benchsuite.gate.rules import NEEDED, Rules
from benchsuite.gate.trial import SUITE, Limit
from benchsuite.gate.verdict import Finding, GateVerdict
from benchsuite.measure.arms import Arm
from benchsuite.run.gate import GatePlugin
from benchsuite.run.judged import GateItem
from benchsuite.tests.gate_rig import PLAIN_RULES
from benchsuite.tests.rig import SETTING
from benchsuite.tests.run.shown import Shown

pytestmark = pytest.mark.usefixtures("endless_line")

ARMS = {
    "a row": Arm(SETTING, draft="ngram", k=2),
    "plain": Arm(SETTING),
    "plain again": Arm(SETTING, again=True),
    "plain eager": Arm(SETTING, eager=True),
    "peer": Arm(SETTING, peer="transformers"),
    "other peer": Arm(SETTING, peer="transformers_prompt_lookup(k=2)"),
}
"""Rows of a run: two of ours that are gated, plain once more, and peers."""


def made_item(nodeid: str, row: str | None = None, timed: bool = True, **limit: float) -> Any:
    """A test of pytest: of a row of ours, of a benchmark, or of neither; with the limits of its marker."""
    marker = SimpleNamespace(args=(), kwargs=limit) if limit else None
    return SimpleNamespace(
        nodeid=nodeid,
        fixturenames=("benchmark",) if timed else ("tmp_path",),
        get_closest_marker={"gate": marker}.get,
        **({} if row is None else {"callspec": SimpleNamespace(params={"specdec_row": row})}),
    )


def result_of(nodeid: str, median: float = 1.0) -> Any:
    """A result of pytest-benchmark."""
    return SimpleNamespace(
        fullname=nodeid, has_error=False, stats=SimpleNamespace(median=median, mean=median, rounds=5)
    )


def report_of(when: str = "call", outcome: str = "passed", longrepr: Any = None) -> Any:
    """What pytest reports of a phase of a test."""
    text = longrepr if isinstance(longrepr, str) else ""
    return SimpleNamespace(
        when=when, skipped=outcome == "skipped", failed=outcome == "failed", longrepr=longrepr, longreprtext=text
    )


class MadeUpRun:
    """A run of pytest that is gated by these rules, with its items and the results of pytest-benchmark."""

    def __init__(
        self, request: pytest.FixtureRequest, folder: Path, items: list[Any], results: list[Any], **rules: Any
    ) -> None:
        self.terminal, self.items = Shown(), items
        printed = SimpleNamespace(line=self.terminal.write_line, flush=lambda: None)
        config: Any = SimpleNamespace(
            option=SimpleNamespace(collectonly=False),
            pluginmanager=SimpleNamespace(hasplugin=lambda name: name == "benchmark", get_plugin=lambda name: None),
            invocation_params=SimpleNamespace(dir=folder, args=("test_a.py", "--gate=fail", "-x")),
            getini={"addopts": ["--strict-markers", "--gate-update"]}.get,
            args=["test_a.py"],
            args_source=pytest.Config.ArgsSource.ARGS,
            get_terminal_writer=lambda: printed,
            _benchmarksession=SimpleNamespace(benchmarks=results),
        )
        self.config = config
        given = Rules(**{**PLAIN_RULES, "file": None, **rules})
        self.gate = GatePlugin(config, given, lambda: None, ARMS.__getitem__)
        self.session: Any = SimpleNamespace(exitstatus=0, testsfailed=0)
        self.tests = [*items]
        self.gate.pytest_collection_modifyitems(request.session, items)

    def report(self, item: Any, report: Any) -> None:
        """Report a phase of a test."""
        hook = self.gate.pytest_runtest_makereport(item)
        next(hook)
        with pytest.raises(StopIteration) as ended:
            hook.send(report)
        assert ended.value.value is report

    def pass_all(self) -> None:
        """Every test passes."""
        for item in self.tests:
            for when in ("setup", "call", "teardown"):
                self.report(item, report_of(when))

    def end(self, status: int = 0) -> int:
        """End the run; returns its exit code."""
        self.session.exitstatus = status
        self.gate.pytest_sessionfinish(self.session, status)
        self.gate.pytest_terminal_summary(self.terminal)
        return int(self.session.exitstatus)

    def verdicts(self) -> dict[str, str]:
        """What each item of the gate says, empty if it passes."""
        said = {}
        for item in self.items[len(self.tests) :]:
            try:
                item.runtest()
                said[item.name] = ""
            except pytest.fail.Exception as failed:
                said[item.name] = str(failed.msg)
        return said


def test_the_gate_waits_for_rows_peers_and_benchmarks_and_names_the_peers_of_which_nothing_was_compared(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Plain once more is measured beside the others; another test is none of its business. Its items come last."""
    items = [made_item(f"test_a.py::test_{number}", name) for number, name in enumerate([*ARMS, "peer"])]
    items += [made_item("test_a.py::test_theirs", level=3, tolerance=0.1), made_item("test_a.py::test_x", timed=False)]
    for fixture in ("specdec_served", "specdec_kernels", "specdec_certificates"):
        items.append(made_item("test_b.py::test_other", timed=False))
        items[-1].fixturenames = (fixture,)
    run = MadeUpRun(request, tmp_path, [*items], [], base="c0ffee")
    lacking = "its test did not run"
    rows = ("a row", "plain", "peer", "other peer", "test_a.py::test_theirs")
    assert run.gate.wanted == dict.fromkeys(rows, lacking)
    assert run.gate.ungated == {
        "peers": ["transformers", "transformers prompt lookup"],
        "acceptance": [],
        "new": [],
        "controls": ["plain eager"],
        "other jobs": ["pytest -m kernels", "pytest -m serving"],
    }
    timed = Finding("other peer", 2, GateVerdict.PASS, "m", CALL)
    run.gate.findings = [timed, replace(timed, row="peer", figure=None)]
    assert run.gate.ungated["peers"] == ["transformers"], "what was not timed was not compared"
    run.gate.findings = [replace(timed, row="peer", figure=None, verdict=GateVerdict.ERROR)]
    assert run.gate.ungated["peers"] == ["transformers prompt lookup"]
    assert run.gate.limits["test_a.py::test_theirs"] == Limit(0.1, 3)
    assert run.gate.limits["plain"] == Limit()
    assert run.items[: len(items)] == items
    gate_items = run.items[len(items) :]
    assert [(one.name, one.nodeid) for one in gate_items] == [
        (name, f"gate::{name}") for name in (*run.gate.wanted, SUITE)
    ]
    assert all(isinstance(one, GateItem) for one in gate_items)
    assert gate_items[0].reportinfo() == (request.config.rootpath, None, "gate: a row")
    saved = MadeUpRun(request, tmp_path, [*items], [], mode="off", save=tmp_path / "new.json")
    assert saved.items == items, "a run that only saves is not judged"
    with pytest.raises(pytest.UsageError, match="two tests measure the row 'a row' and their gate markers differ"):
        MadeUpRun(request, tmp_path, [made_item("a", "a row"), made_item("b", "a row", level=0)], [], base="c0ffee")


@pytest.mark.parametrize(
    ("reports", "why"),
    [
        ([], "its test did not run"),
        ([report_of("setup")], "its test did not run"),
        ([report_of("setup"), report_of("call"), report_of("teardown")], None),
        ([report_of("setup"), report_of("call"), report_of("teardown", "failed")], "its test failed"),
        ([report_of("setup", "failed")], "its test failed"),
        ([report_of("setup", "skipped", ("a.py", 7, "Skipped: no disk"))], "its test was skipped: Skipped: no disk"),
        ([report_of("call", "skipped", "one\ntwo")], "its test was skipped: two"),
        ([report_of("call", "skipped")], "its test was skipped: no reason"),
    ],
)
def test_a_row_is_measured_once_its_test_was_called_and_else_says_why_not(
    reports: list[Any], why: str | None, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    run = MadeUpRun(request, tmp_path, [made_item("a", "a row"), made_item("b", timed=False)], [], base="c0ffee")
    for one in reports:
        run.report(run.tests[0], one)
        run.report(run.tests[1], report_of("call", "failed"))
    assert run.gate.wanted == {"a row": why}


def test_a_run_that_could_not_be_compared_is_refused_before_it_measures(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Unless it only lists its items, or could not collect them."""
    item = made_item("test_a.py::test_a")
    few = MadeUpRun(request, tmp_path, [item], [], base="c0ffee", launches=(4, 0))
    with pytest.raises(pytest.UsageError, match=r"--gate-launches 4\+0 can show nothing of 1 row"):
        few.gate.pytest_runtestloop(few.session)
    for run, what in ((few, "collectonly"), (few, "testsfailed")):
        run.config.option.collectonly, run.session.testsfailed = what == "collectonly", what == "testsfailed"
        run.gate.pytest_runtestloop(run.session)
    MadeUpRun(request, tmp_path, [item], [], base="c0ffee").gate.pytest_runtestloop(SimpleNamespace(testsfailed=0))  # type: ignore[arg-type]
    off = MadeUpRun(request, tmp_path, [item], [], mode="off", save=tmp_path / "new.json", launches=(4, 0))
    off.gate.pytest_runtestloop(off.session)
    none = MadeUpRun(request, tmp_path, [made_item("b", timed=False)], [], base="c0ffee")
    assert none.items == none.tests
    with pytest.raises(
        pytest.UsageError, match="^--gate: this run has no benchmarks, so nothing would be gated; select"
    ):
        none.gate.pytest_runtestloop(none.session)


BOTH = ("test_a.py::test_a", "test_a.py::test_b")


@pytest.mark.parametrize("lacks", [False, True])
def test_a_baseline_that_is_not_there_is_made_of_a_run_that_lacks_no_row(
    lacks: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """What no test of this run has measured is not in it."""
    file = tmp_path / "gate.json"
    kept = {"json": tmp_path / "v.json", "exports": (("markdown", tmp_path / "v.md"),)}
    items, results = [made_item(name) for name in BOTH], [result_of(BOTH[0], 0.5), result_of(BOTH[1], 0.25), None]
    run = MadeUpRun(request, tmp_path, items, results, file=file, on_missing="save", **kept)
    run.pass_all()
    if lacks:
        run.report(run.tests[1], report_of("call", "failed"))
    said = run.verdicts()
    assert run.end() == (1 if lacks else 0)
    wrote = [f"verdicts: {tmp_path / 'v.json'}", f"markdown: {tmp_path / 'v.md'}"]
    verdicts = json.loads((tmp_path / "v.json").read_text())
    assert "Gate: " in (tmp_path / "v.md").read_text()
    if lacks:
        why = f"ERROR at level 0, {BOTH[1]}: no baseline was made: its test failed"
        assert said == {
            BOTH[0]: "it was not compared: see what is said of the others and of the suite",
            BOTH[1]: why,
            SUITE: "",
        }
        assert not file.exists()
        assert verdicts["verdict"] == "ERROR"
        assert run.gate.trial is not None
        assert [*run.gate.trial.head.rows] == [BOTH[0]], "what failed is not measured"
        assert run.terminal.lines[-2:] == wrote
        return
    assert said == {BOTH[0]: "", BOTH[1]: "", SUITE: ""}
    rows = Record.load(file).rows
    assert {name: [launch.times[CALL].seconds for launch in row.launches] for name, row in rows.items()} == {
        BOTH[0]: [(0.5,)],
        BOTH[1]: [(0.25,)],
    }
    shown = run.terminal.lines
    assert shown[0] == "- gate"
    assert [line.split() for line in shown[3:5]] == [[name, "0", "PASS"] for name in BOTH]
    sentence = f"\nPASS: 2 rows at level 0 against {file}: nothing was compared, the baseline is this run"
    assert shown[5:] == [sentence, f"made the baseline that was not there: {file}", *wrote]
    assert run.terminal.marked == {sentence: {"bold": True}}
    assert [one["verdict"] for one in verdicts["findings"]] == ["PASS", "PASS"]


def baseline_file(request: pytest.FixtureRequest, folder: Path, names: tuple[str, ...], launches: int = 1) -> Path:
    """A baseline of these benchmarks, of so many launches."""
    folder.mkdir(exist_ok=True)
    file = folder / "base.json"
    run = MadeUpRun(
        request, folder, [made_item(n) for n in names], [result_of(n) for n in names], mode="off", save=file
    )
    run.pass_all()
    assert run.end() == 0
    record = Record.load(file)
    file.unlink()
    rows = {name: replace(row, launches=row.launches * launches) for name, row in record.rows.items()}
    Record(record.made, rows).save(file)
    return file


def test_a_baseline_that_is_saved_says_how_many_rows_and_launches_it_has_and_what_plain_benchmarks_need(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    file = tmp_path / "new.json"
    run = MadeUpRun(request, tmp_path, [made_item(BOTH[0])], [result_of(BOTH[0], 0.5)], mode="off", save=file)
    run.pass_all()
    assert run.end() == 0
    heading, saved, needs = run.terminal.lines
    assert (heading, " ".join(saved.split())) == ("- gate", f"saved {file}: 1 row, 1 launch")
    assert needs.startswith("1 row has times and no counters (pytest-benchmark's): ")
    assert f"holds {NEEDED} launches" in " ".join(needs.split())
    assert [*Record.load(file).rows] == [BOTH[0]]
    assert run.items == run.tests


def verdicts_shown(run: MadeUpRun) -> Mapping[str, Any]:
    """The findings of a run whose tests pass, by their rows."""
    run.pass_all()
    return {finding.row: (finding.verdict, finding.message) for finding in run.gate.judge()}


@pytest.mark.parametrize("update", [False, True])
def test_what_cannot_be_compared_is_no_baseline_and_a_launch_is_asked_as_this_run_was(
    update: bool, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A benchmark has no counters, which are all that can be compared of one launch. Other options of the gate are left
    out of its launches, and the environment's are added."""
    monkeypatch.setenv("PYTEST_ADDOPTS", "-k 'a b'")
    file = baseline_file(request, tmp_path / "base", BOTH[:1])
    before = file.read_text()
    run = MadeUpRun(request, tmp_path, [made_item(BOTH[0])], [result_of(BOTH[0], 9.0)], file=file, update=update)
    found = verdicts_shown(run)
    assert found[BOTH[0]][0] == GateVerdict.ERROR
    assert file.read_text() == before
    assert run.end() == 1
    assert (run.terminal.lines[-1] == f"not written: {file}, because of the errors above") == update
    assert run.gate.trial is not None
    launcher = run.gate.trial.launcher
    assert launcher.arguments == ["--strict-markers", "-k", "a b", "test_a.py", "-x"]
    assert (launcher.folder, launcher.names, launcher.pairs) == (tmp_path, ["test_a.py"], 10)
    run.config.args_source = pytest.Config.ArgsSource.TESTPATHS
    again = MadeUpRun(request, tmp_path, [made_item(BOTH[0])], [], file=file)
    again.config.args_source = pytest.Config.ArgsSource.TESTPATHS
    assert verdicts_shown(again)[SUITE][1].startswith("nothing was measured, so nothing is shown")
    assert again.gate.trial is not None
    assert again.gate.trial.launcher.names == ()


def test_a_benchmark_that_no_test_declares_is_an_error_of_the_suite_by_its_name(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    results = [result_of(BOTH[0]), result_of("test_z.py::z"), result_of("test_a.py::hidden"), None]
    run = MadeUpRun(request, tmp_path, [made_item(BOTH[0])], results, base="c0ffee")
    said = "measured, but not by a test that the gate knows: test_a.py::hidden, test_z.py::z"
    assert verdicts_shown(run) == {SUITE: (GateVerdict.ERROR, said)}
    assert run.gate.judge() is run.gate.findings, "it judges once"
    assert run.end() == 1


def test_a_gate_that_breaks_shows_where_once_and_fails_the_run(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    run = MadeUpRun(request, tmp_path, [made_item(BOTH[0])], ["no result"], base="c0ffee")
    run.pass_all()
    first, suite = run.items[1:]
    with pytest.raises(AttributeError):
        first.runtest()
    with pytest.raises(
        pytest.fail.Exception, match="^ERROR at level 0, suite: the gate broke; its first item shows where"
    ):
        suite.runtest()
    assert run.end() == 1


def test_a_baseline_of_another_machine_is_refused_by_its_file_and_what_differs(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Only its counters may be compared, if that is wished for; an anchor has as many launches as a level takes."""
    file = baseline_file(request, tmp_path / "base", BOTH[:1], NEEDED)
    content = json.loads(file.read_text())
    content["made"]["machine"]["processor"] = "another"
    file.write_text(json.dumps(content))
    said = rf"^--gate-against {re.escape(str(file))}: the baseline was made on another machine.*'another' there"
    with pytest.raises(GateError, match=said):
        MadeUpRun(request, tmp_path, [], [], file=file)
    assert MadeUpRun(request, tmp_path, [], [], file=file, on_mismatch="counters").gate.levels == (0,)
    assert MadeUpRun(request, tmp_path, [], [], file=file, on_mismatch="ignore").gate.levels == (0, 1)
    short = baseline_file(request, tmp_path / "short", BOTH[:1])
    assert MadeUpRun(request, tmp_path, [], [], file=short).gate.levels == (0,)
    with pytest.raises(GateError, match="^--gate-anchor .* holds 1 launch of a row and takes 5"):
        MadeUpRun(request, tmp_path, [], [], base="c0ffee", anchor=short)


@pytest.mark.parametrize(
    ("findings", "said"),
    [
        ({BOTH[0]: GateVerdict.PASS, SUITE: GateVerdict.PASS}, ("", "")),
        ({BOTH[0]: GateVerdict.REGRESSED}, ("REGRESSED", "")),
        ({f"{BOTH[0]} (slower)": GateVerdict.ERROR}, ("ERROR", "")),
        ({f"{BOTH[0]}more": GateVerdict.ERROR, SUITE: GateVerdict.PASS}, ("it was not compared", "")),
        ({SUITE: GateVerdict.ERROR}, ("it was not compared", "ERROR")),
        ({SUITE: GateVerdict.PASS}, ("", "")),
        ({BOTH[0]: GateVerdict.IMPROVED, SUITE: GateVerdict.ERROR}, ("", "ERROR")),
    ],
)
def test_an_item_of_the_gate_fails_by_what_is_found_of_its_row_or_where_nothing_is(
    findings: dict[str, GateVerdict], said: tuple[str, str], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """A self-test has findings of a row under names with a variant in brackets."""
    run = MadeUpRun(request, tmp_path, [made_item(BOTH[0])], [], base="c0ffee")
    run.gate.findings = [Finding(row, 0, verdict, "said") for row, verdict in findings.items()]
    row, suite = run.verdicts().values()
    for text, begin in zip((row, suite), said, strict=True):
        assert text.startswith(begin)
        assert bool(text) == bool(begin)
    if said[0] == "REGRESSED":
        run.gate.findings += [Finding(BOTH[0], 1, GateVerdict.ERROR, "more")]
        assert run.verdicts()[BOTH[0]].splitlines() == [
            f"REGRESSED at level 0, {BOTH[0]}: said",
            f"ERROR at level 1, {BOTH[0]}: more",
        ]
