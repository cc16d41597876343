"""How a run ends: what is written, shown and returned where workers, servers and the gate have left what they have."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchsuite.gate.rules import Rules
from benchsuite.gate.verdict import Finding, GateVerdict
from benchsuite.measure.arms import Arm
from benchsuite.measure.measured import Measured
from benchsuite.report.renderers import WIDTH
from benchsuite.report.speculation import speculation_document
from benchsuite.run.gate import GatePlugin
from benchsuite.run.request import RunRequest, texts_of
from benchsuite.run.results_folder import DIST, FOLDER, RunKeeper
from benchsuite.run.serving import ServingPlugin
from benchsuite.run.speculation import ComparisonPlugin
from benchsuite.store.journal import Journal
from benchsuite.tests.gate_rig import PLAIN_RULES
from benchsuite.tests.report.made_parts import plain_cell
from benchsuite.tests.rig import SETTING, Run, requested
from benchsuite.tests.run.shown import Shown
from specdec.amounts import amount

ROWS = {"target": "tiny", "workload": "chat", "arm": "garbage", "peer": "none", "device": "cpu"}


def end_of_workers(
    root: Path, status: int, verbose: int = 0, isatty: bool = False, **given: str
) -> tuple[Any, Shown, Journal]:
    """A run of two workers of pytest-xdist, one of which has measured two cells, at its end: the session, the terminal
    and the folder of results."""
    request = RunRequest.of(texts_of({**ROWS, "results": "kept", **given}, root))
    config: Any = SimpleNamespace(option=SimpleNamespace(verbose=verbose, dist="load"))
    plugin = ComparisonPlugin(config, request)
    nodes: list[Any] = [SimpleNamespace(workerinput={}, workeroutput={}), SimpleNamespace(workerinput={})]
    for node in nodes:
        plugin.pytest_configure_node(node)
        assert node.workerinput == nodes[0].workerinput
    assert nodes[0].workerinput[DIST] == "load"
    keeper, measured, cells = RunKeeper(nodes[0], request), Measured(), [plain_cell(place) for place in range(2)]
    keeper.begin([Arm(cell.setting) for cell in cells])
    measured.card.append("the card of a worker")
    for cell in cells:
        measured.add(cell)
        keeper.keep(cell, measured)
    assert keeper.write(measured, complete=True)
    for node in nodes:
        plugin.pytest_testnodedown(node, None)
    session: Any = SimpleNamespace(exitstatus=status)
    plugin.pytest_sessionfinish(session, status)
    shown = Shown(isatty)
    plugin.pytest_terminal_summary(shown)
    return session, shown, Journal.load(Path(nodes[0].workerinput[FOLDER]))


@pytest.mark.slow
@pytest.mark.parametrize(("status", "verbose", "isatty"), [(0, 0, False), (1, 0, True), (0, -1, True)])
def test_the_controller_writes_and_shows_what_its_workers_have_measured(
    status: int, verbose: int, isatty: bool, tmp_path: Path
) -> None:
    """A reader looks first at the top of a log and at the bottom of a terminal; a quiet run has no tables."""
    session, shown, journal = end_of_workers(tmp_path, status, verbose, isatty)
    assert session.exitstatus == status
    assert journal.said["complete"] == (status == 0)
    assert "the card of a worker" in journal.said["card"]
    assert len([*journal.cells()]) == 2
    assert shown.lines[-2:] == [f"results: {journal.folder}", f"report: {journal.folder / 'report.html'}"]
    assert (journal.folder / "report.html").is_file()
    document = speculation_document(journal.measured().results())
    assert shown.lines[0] == f"= {document.title}"
    answer = next(n for n, line in enumerate(shown.lines) if line.startswith(document.lead[0][:40]))
    titles = [f" {section.title} ".center(WIDTH, "-") for section in document.sections if not section.detail]
    found = [n for n, line in enumerate(shown.lines) if line in titles]
    assert bool(found) == (verbose == 0)
    assert all((answer < n) == (not isatty) for n in found)
    assert not {section.title for section in document.sections} & {*shown.lines}, "a title is said once"


def test_a_run_of_workers_without_a_folder_says_that_nobody_shows_its_rows() -> None:
    config: Any = SimpleNamespace(option=SimpleNamespace(verbose=0, dist="load"))
    plugin = ComparisonPlugin(config, requested(**ROWS))
    session: Any = SimpleNamespace(exitstatus=0)
    node: Any = SimpleNamespace(workerinput={})
    plugin.pytest_configure_node(node)
    assert node.workerinput == {DIST: "load"}
    for workers, shows in ((({}, None), False), (({"specdec_lines": {"card": ["a line"]}},), True)):
        for output in workers:
            plugin.pytest_testnodedown(SimpleNamespace(**({} if output is None else {"workeroutput": output})), None)
        plugin.pytest_sessionfinish(session, 0)
        shown: Any = Shown()
        plugin.pytest_terminal_summary(shown)
        assert session.exitstatus == 0
        assert bool(shown.lines) == shows
    assert shown.lines == [
        "= Speculative decoding",
        "pytest-xdist's workers have measured the rows, and nobody shows them: give",
        "--specdec-results FOLDER, or leave out -n, beside which no time is undisturbed",
    ]


def gate_of(listed: bool = False, **more: Any) -> GatePlugin:
    """The gate of a run with these rules, of which nothing is known yet."""
    config: Any = SimpleNamespace(
        option=SimpleNamespace(collectonly=listed),
        pluginmanager=SimpleNamespace(hasplugin=lambda name: True),
        invocation_params=SimpleNamespace(dir=Path()),
    )
    rules = Rules(**{**PLAIN_RULES, "file": None, "base": "c0ffee", **more})
    return GatePlugin(config, rules, lambda: None, lambda name: Arm(SETTING, draft="ngram"))


VERDICTS = st.sampled_from([*GateVerdict])


@given(st.sampled_from(["fail", "report"]), st.booleans(), st.sampled_from(["fail", "report"]), VERDICTS)
def test_a_finding_fails_a_run_by_its_verdict_unless_it_is_let_through(
    mode: str, update: bool, inconclusive: str, verdict: GateVerdict
) -> None:
    """An update accepts all that could be compared, and a report fails nothing."""
    fails = {
        GateVerdict.IMPROVED: False,
        GateVerdict.PASS: False,
        GateVerdict.COARSE: False,
        GateVerdict.INCONCLUSIVE: inconclusive == "fail" and not update,
        GateVerdict.REGRESSED: not update,
        GateVerdict.ERROR: True,
    }[verdict]
    made = gate_of(mode=mode, update=update, inconclusive=inconclusive)
    assert made.blocks(Finding("a row", 0, verdict, "said")) == (fails and mode != "report")


@pytest.mark.slow
@settings(max_examples=200)
@given(
    st.sampled_from(["fail", "report", "off"]),
    st.one_of(st.none(), st.lists(VERDICTS, max_size=3)),
    st.booleans(),
    st.integers(0, 5),
)
def test_a_gate_fails_a_run_that_passed_by_its_findings_or_where_it_has_none_and_shows_them(
    mode: str, verdicts: list[GateVerdict] | None, listed: bool, status: int
) -> None:
    """A run that was interrupted, or only listed, is not judged; what has failed stays as it is."""
    made = gate_of(listed, mode=mode)
    if verdicts is not None:
        made.findings = [Finding(f"row {n}", 2, verdict, f"said {n}") for n, verdict in enumerate(verdicts)]
    session: Any = SimpleNamespace(exitstatus=status)
    made.pytest_sessionfinish(session, status)
    judged = not listed and status == 0 and mode != "off"
    lacks = judged and verdicts is None
    wrong = {GateVerdict.INCONCLUSIVE, GateVerdict.REGRESSED, GateVerdict.ERROR}
    fails = judged and mode == "fail" and bool(wrong & {*(verdicts or ())})
    assert session.exitstatus == (1 if lacks or fails else status)
    shown = Shown()
    made.pytest_terminal_summary(shown)
    said = "ERROR: the gate was asked for and no gate item ran, so nothing was compared"
    if verdicts:
        worst = max(verdicts, key=[*GateVerdict].index)
        assert shown.lines[0] == "- gate"
        assert all(any(f"row {n}" in line for line in shown.lines) for n in range(len(verdicts)))
        [(marked, how)] = shown.marked.items()
        assert (marked, how) == (shown.lines[-1], {"bold": True})
        assert marked.startswith(f"\n{worst}: {amount(len(verdicts), 'row')} at level 2 against c0ffee: ")
    else:
        shows = lacks or verdicts == []
        assert shown.lines == [*(["- gate"] if shows else []), *([said] if lacks else [])]


@pytest.mark.parametrize(
    ("status", "ends", "said"),
    [(0, 4, "no row was measured, so nothing is written"), (1, 1, "some test failed, so nothing is written")],
)
def test_a_baseline_without_rows_or_of_a_run_that_failed_is_not_saved(
    status: int, ends: int, said: str, tmp_path: Path
) -> None:
    made = gate_of(mode="off", base=None, save=tmp_path / "new.json")
    made.wanted = {"a row": "its test did not run"}
    session: Any = SimpleNamespace(exitstatus=status)
    made.pytest_sessionfinish(session, status)
    assert session.exitstatus == ends
    assert made.wrote == [f"ERROR: --gate-save {tmp_path / 'new.json'}: {said}"]
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(("kept", "blocks"), [("kept", []), ("", []), ("", ["a block"])])
def test_servers_are_ended_with_the_run_and_nothing_is_kept_where_nothing_was_asked(
    kept: str, blocks: list[str], tmp_path: Path
) -> None:
    config: Any = SimpleNamespace()
    plugin = ServingPlugin(config, RunRequest.of(texts_of({"results": kept}, tmp_path)))
    closed = list[str]()
    servers = SimpleNamespace(close=lambda: closed.append("closed"))
    bench: Any = SimpleNamespace(blocks=blocks, certificates=[], servers=servers)
    plugin.bench = bench
    session: Any = SimpleNamespace(exitstatus=0)
    plugin.pytest_sessionfinish(session, 0)
    assert (closed, session.exitstatus, plugin.outcome, [*tmp_path.iterdir()]) == (["closed"], 0, "", [])
    shown: Any = Shown()
    if not blocks:
        plugin.pytest_terminal_summary(shown)
    assert shown.lines == []


PARTS = ("comparison", "devices", "kernels", "gate", "decoding", "load", "conversations", "shards", "ranks", "serving")
CONFTEST = f"""
def pytest_collection_finish(session):
    has = session.config.pluginmanager.hasplugin
    print([name for name in {PARTS} if has(f"specdec-{{name}}")])
"""


@pytest.mark.slow
def test_other_plugins_find_every_part_of_the_plugin_by_its_name(inside: Run, tmp_path: Path) -> None:
    """The gate is there where it is asked for, and any part may be left out."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_theirs.py").write_text("def test_theirs(): pass\n")
    whole = inside("-m", "pytest", "test_theirs.py", "--collect-only", "-s", "--gate-save=new.json")
    assert f"{[*PARTS]}\n" in whole.stdout
    less = inside("-m", "pytest", "test_theirs.py", "--collect-only", "-s", "-p", "no:specdec-serving")
    assert f"{[name for name in PARTS if name not in ('gate', 'serving')]}\n" in less.stdout


def test_a_list_of_what_is_registered_ends_a_run_well_before_it_collects(inside: Run, tmp_path: Path) -> None:
    (tmp_path / "test_theirs.py").write_text("1 / 0\n")
    done = inside("-m", "pytest", "test_theirs.py", "--specdec-list")
    assert done.returncode == 0
    assert "ngram" in done.stdout
    assert "error" not in done.stdout.lower()
