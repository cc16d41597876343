"""The part of the plugin that compares strategies, in runs of which nothing is measured: items, plan, card, ends."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchsuite.measure import session as measuring
from benchsuite.measure.arms import Arm, Setting
from benchsuite.measure.cells import Cell
from benchsuite.measure.measured import Measured
from benchsuite.measure.plan import MeasuringPlan
from benchsuite.report.renderers import WIDTH, section_lines, wrapped
from benchsuite.report.replay import replayed_seconds
from benchsuite.report.speculation import speculation_document
from benchsuite.run.cluster import run_shard
from benchsuite.run.request import RunRequest, texts_of
from benchsuite.run.results_folder import DIST, FOLDER
from benchsuite.run.speculation import ComparisonPlugin
from benchsuite.store.journal import Journal, manifest
from benchsuite.tests.report.made_parts import plain_cell
from benchsuite.tests.run.shown import Shown
from specdec import SpecdecError

pytest_plugins = "pytester"

ROWS = {"target": "tiny", "workload": "chat", "arm": "garbage", "peer": "none", "device": "cpu", "graphs": "off"}
"""Three rows: plain decoding, plain decoding again, and a strategy."""

LONG = "a line that is longer than a terminal " * 4


class MadeUpBench(Measured):
    """Stands for the bench of a run: it keeps what it is asked for and measures nothing.

    ``refuses``: what cannot be prepared or measured.
    """

    refuses = ""

    def __init__(self, plan: MeasuringPlan, abandon: Callable[[str], None], keep: Callable[[Cell], None]) -> None:
        super().__init__(plan.baseline, plan.dry, plan.across)
        self.plan, self.keep = plan, keep
        self.prepared: list[Arm] = []
        self.traced: list[tuple[Setting, Path]] = []
        self.ticks = 3
        self.closed = False

    def close(self) -> None:
        """Keep that it was closed."""
        self.closed = True

    def prepare(self, arms: list[Arm]) -> None:
        """Keep the arms, and write a card."""
        if self.refuses:
            raise SpecdecError(self.refuses)
        self.card += ["a card", LONG]
        self.prepared = arms

    def row(self, arm: Arm, tick: Callable[[str], None]) -> Arm:
        """The arm itself, in place of its row."""
        if self.refuses:
            raise SpecdecError(self.refuses)
        tick(arm.strategy)
        return arm

    def trace(self, setting: Setting, folder: Path) -> None:
        """Keep where a trace is to be."""
        self.traced.append((setting, folder))


@pytest.fixture(autouse=True)
def nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every bench is made up."""
    monkeypatch.setattr(measuring, "Bench", MadeUpBench)


class MadeUpItem:
    """An item of pytest: of a row by its name, or of none."""

    def __init__(self, name: str | None) -> None:
        self.nodeid = f"test_rows.py::test_row[{name}]"
        self.marks: list[Any] = []
        if name is not None:
            self.callspec = SimpleNamespace(params={"specdec_row": name})

    def add_marker(self, mark: Any) -> None:
        """Keep a mark."""
        self.marks.append(mark)


class MadeUpComparison:
    """A run of pytest with these options, whose rows are parametrized; ``worker``: what pytest-xdist gave it."""

    def __init__(self, folder: Path, worker: dict[str, str] | None = None, /, **given: str) -> None:
        self.shown, self.cases = Shown(), dict[str, list[str]]()
        self.has = {"benchmark"}
        self.option = SimpleNamespace(collectonly=False, verbose=0)
        plugins = {"terminalreporter": self.shown}
        manager = SimpleNamespace(hasplugin=lambda name: name in self.has, get_plugin=plugins.get)
        config: Any = SimpleNamespace(option=self.option, pluginmanager=manager)
        if worker is not None:
            config.workerinput, config.workeroutput = worker, {}
        self.plugin = ComparisonPlugin(config, RunRequest.of(texts_of({**ROWS, **given}, folder)))
        self.parametrize("specdec_row")
        self.items: list[Any] = [MadeUpItem(name) for name in self.plugin.arms]
        self.session: Any = SimpleNamespace(items=self.items, shouldstop="", exitstatus=0)

    def parametrize(self, *fixtures: str) -> None:
        """Collect a test that uses these fixtures."""

        def parametrized(fixture: str, cases: Sequence[Any], indirect: bool, ids: Sequence[str]) -> None:
            assert (fixture, indirect) == ("specdec_row", True)
            assert [case.values for case in cases] == [(name,) for name in ids]
            self.cases |= {name: [mark.name for mark in case.marks] for name, case in zip(ids, cases, strict=True)}

        made: Any = SimpleNamespace(fixturenames=fixtures, parametrize=parametrized)
        self.plugin.pytest_generate_tests(made)

    def begin(self) -> Any:
        """End the collection; returns the bench, if there is one."""
        self.plugin.pytest_collection_finish(self.session)
        return self.plugin.bench


def test_a_test_of_rows_has_an_item_for_each_arm_marked_by_its_device_and_slow_unless_its_target_is_tiny(
    tmp_path: Path,
) -> None:
    run = MadeUpComparison(tmp_path, target="tiny,smollm2-135m", device="cpu,cuda:1,mps")
    names = ("plain", "plain-again", "garbage-match-k4")
    expected = {
        f"{target}-chat-{name}-device{device}": [*gpu, *slow]
        for target, slow in (("tiny", []), ("smollm2-135m", ["slow"]))
        for device, gpu in (("cpu", []), ("cuda:1", ["cuda", "gpu"]), ("mps", ["mps", "gpu"]))
        for name in names
    }
    assert run.cases == expected
    run.cases.clear()
    run.parametrize("tmp_path")
    assert run.cases == {}


def test_rows_are_timed_by_the_replayed_clock_in_groups_of_their_target_and_text(tmp_path: Path) -> None:
    run = MadeUpComparison(tmp_path, workload="chat,reasoning")
    other = MadeUpItem(None)
    run.items.insert(2, other)
    next(run.plugin.pytest_collection_modifyitems(run.items))
    assert other.marks == []
    del run.items[2]
    found = [[(mark.name, mark.kwargs) for mark in item.marks] for item in run.items]
    groups = [f"tiny {kind}" for kind in ("chat", "reasoning") for _ in range(3)]
    assert found == [[("benchmark", {"timer": replayed_seconds, "group": group})] for group in groups]
    without = MadeUpComparison(tmp_path)
    without.has.clear()
    next(without.plugin.pytest_collection_modifyitems(without.items))
    assert [item.marks for item in without.items] == [[], [], []]


def test_nothing_is_loaded_where_no_row_is_asked_for_or_to_be_run_and_a_wrong_option_ends_the_collection(
    tmp_path: Path,
) -> None:
    for option in ("collectonly", "benchmark_skip"):
        run = MadeUpComparison(tmp_path)
        setattr(run.option, option, True)
        assert run.begin() is None
    run = MadeUpComparison(tmp_path)
    run.session.items = [MadeUpItem(None)]
    assert run.begin() is None
    wrong = MadeUpComparison(tmp_path, arm="garbge")
    assert wrong.cases == {}
    next(wrong.plugin.pytest_collection_modifyitems([MadeUpItem("a row")]))  # type: ignore[list-item]
    assert wrong.plugin.cell_of(MadeUpItem("a row")) is None  # type: ignore[arg-type]
    with pytest.raises(pytest.UsageError, match="^unknown draft 'garbge'; did you mean 'garbage'"):
        wrong.begin()


@pytest.mark.parametrize(
    ("given", "plan"),
    [
        ({}, MeasuringPlan(timeout=600.0, graphs=False)),
        (
            {
                **{"prompts": "2", "pairs": "3", "timeout": "90", "baseline": "garbage", "judge": "tiny"},
                **{"debug": "true", "graphs": "auto", "across": "dtype,runtime", "exact": "true"},
            },
            MeasuringPlan(
                prompts=2,
                pairs=3,
                timeout=90.0,
                baseline="garbage",
                judge="tiny",
                debug=True,
                exact=True,
                across=("dtype", "runtime"),
            ),
        ),
        (
            {"precision": "2%", "budget": "5", "dry_run": "true", "timeout": "0"},
            MeasuringPlan(prompts=1, precision=0.02, budget=5.0, dry=True, graphs=False),
        ),
        ({"dry_run": "true", "prompts": "4"}, MeasuringPlan(prompts=4, dry=True, timeout=600.0, graphs=False)),
        (
            {"gate_save": "new.json", "gate_pairs": "7"},
            MeasuringPlan(least=7, timeout=600.0, graphs=False),
        ),
    ],
    ids=["nothing", "fixed", "chosen", "dry", "saved"],
)
def test_a_comparison_is_planned_as_its_request_says(
    given: dict[str, str], plan: MeasuringPlan, tmp_path: Path
) -> None:
    assert MadeUpComparison(tmp_path, **given).begin().plan == plan


def test_the_rows_that_are_left_are_prepared_once_and_the_card_is_shown_unless_the_run_is_quiet(tmp_path: Path) -> None:
    for verbose, lines in ((0, ["- specdec-bench", *wrapped(["a card", LONG])]), (-1, [])):
        run = MadeUpComparison(tmp_path)
        run.option.verbose = verbose
        run.session.items = [run.items[2], MadeUpItem(None), run.items[0], run.items[2]]
        bench = run.begin()
        assert [arm.id for arm in bench.prepared] == [
            "tiny-chat-plain-devicecpu",
            "tiny-chat-garbage-match-k4-devicecpu",
        ], "in the order of the matrix, whatever that of pytest's items is"
        assert run.shown.lines == lines


def test_a_run_that_cannot_be_prepared_is_refused_and_leaves_no_folder_but_that_of_its_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MadeUpBench, "refuses", "no room")
    with pytest.raises(pytest.UsageError, match="^no room$"):
        MadeUpComparison(tmp_path, results="kept").begin()
    assert [*(tmp_path / "kept").iterdir()] == []
    with pytest.raises(pytest.UsageError, match="^no room$"):
        MadeUpComparison(tmp_path).begin()
    folder = Journal.begin_in(tmp_path / "kept", "tiny", manifest({})).folder
    with pytest.raises(pytest.UsageError, match="^no room$"):
        MadeUpComparison(tmp_path, {FOLDER: str(folder), DIST: "load"}, results="kept").begin()
    assert folder.is_dir()


@pytest.mark.parametrize("first", [True, False])
def test_runs_are_counted_in_one_bar_on_the_terminal_of_the_first_rank_until_the_end(
    first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = MadeUpComparison(tmp_path)
    run.begin()
    ranks: Any = SimpleNamespace(first=first)
    run.plugin.ranks_plugin.ranks = ranks
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for name in run.plugin.arms:
        run.plugin.row(name)
    run.plugin.pytest_sessionfinish(run.session, 0)
    said = capsys.readouterr().err
    assert (said.count("| 0/3 ["), "runs" in said) == (int(first), first)
    assert said.endswith("\r") == first, "the bar is gone"


def test_a_row_that_cannot_be_measured_fails_its_test_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = MadeUpComparison(tmp_path)
    run.begin()
    [name, *_] = run.plugin.arms
    row: Any = run.plugin.row(name)
    assert row == run.plugin.arms[name]
    monkeypatch.setattr(MadeUpBench, "refuses", "no distribution")
    with pytest.raises(pytest.fail.Exception) as failed:
        run.plugin.row(name)
    assert (failed.value.msg, failed.value.pytrace) == (f"{name}: no distribution", False)


@pytest.mark.parametrize("ranked", [False, True])
@pytest.mark.parametrize("profile", ["", "true"])
def test_a_cell_is_kept_and_traced_if_asked_and_a_disk_that_is_full_ends_the_run_of_every_rank(
    profile: str, ranked: bool, tmp_path: Path
) -> None:
    run = MadeUpComparison(tmp_path, results="kept", profile=profile)
    bench, ended = run.begin(), list[str]()
    if ranked:
        ranks: Any = SimpleNamespace(first=True, end=ended.append)
        run.plugin.ranks_plugin.ranks = ranks
    cell = replace(plain_cell(0), setting=bench.prepared[0].setting)
    [folder] = (tmp_path / "kept").iterdir()
    bench.keep(cell)
    assert len([*(folder / "cells").iterdir()]) == 1
    assert bench.traced == ([(cell.setting, folder / "traces")] if profile else [])
    assert (run.session.shouldstop, ended) == ("", [])
    for file in (folder / "cells").iterdir():
        file.unlink()
    (folder / "cells").rmdir()
    (folder / "cells").touch()
    bench.keep(cell)
    said = f"the cell {cell.setting.id} could not be written to {folder}: "
    assert run.session.shouldstop.startswith(said)
    assert ended == ([run.session.shouldstop] if ranked else [])
    assert len(bench.traced) == bool(profile), "what is not written is not traced"


@pytest.mark.parametrize(("verbose", "isatty"), [(0, False), (1, True), (-1, False), (-1, True)])
def test_the_answer_is_at_the_top_of_a_log_and_at_the_bottom_of_a_terminal_and_alone_where_a_run_is_quiet(
    verbose: int, isatty: bool, tmp_path: Path
) -> None:
    run = MadeUpComparison(tmp_path)
    run.option.verbose = verbose
    bench = run.begin()
    before, shown = Shown(), Shown(isatty)
    run.plugin.pytest_terminal_summary(before)
    assert before.lines == [], "nothing was measured"
    bench.add(replace(plain_cell(0), setting=bench.prepared[0].setting))
    run.plugin.pytest_sessionfinish(run.session, 0)
    assert (bench.closed, run.session.exitstatus) == (True, 0)
    run.plugin.pytest_terminal_summary(shown)
    document = speculation_document(bench.results())
    answer, tables = wrapped(document.lead), list[str]()
    for section in document.sections:
        lines = [line for line in section_lines(section, titled=False) if line]
        tables += [f" {section.title} ".center(WIDTH, "-"), *lines] if lines and not section.detail else []
    assert len(tables) > 9
    if verbose < 0:
        tables = []
        answer.append("tables: without -q, or in the report of --specdec-results FOLDER")
    assert shown.lines == ["= Speculative decoding", *([*tables, *answer] if isatty else [*answer, *tables])]


@pytest.mark.parametrize("room", [True, False])
@pytest.mark.parametrize("status", [0, 1])
def test_a_run_ends_with_the_files_of_its_cells_or_fails_where_they_find_no_room(
    status: int, room: bool, tmp_path: Path
) -> None:
    """A cell that could not be written is written at the end, if there is room then; what is full is shown."""
    run = MadeUpComparison(tmp_path, results="kept")
    run.option.verbose = -1
    bench = run.begin()
    [folder] = (tmp_path / "kept").iterdir()
    cell = replace(plain_cell(0), setting=bench.prepared[0].setting)
    bench.add(cell)
    (folder / "cells").rmdir()
    (folder / "cells").touch()
    bench.keep(cell)
    if room:
        (folder / "cells").unlink()
    run.session.exitstatus = status
    run.plugin.pytest_sessionfinish(run.session, status)
    run.plugin.pytest_terminal_summary(run.shown)
    assert run.session.exitstatus == (status if room else 1)
    if room:
        assert [one.setting for one in Journal.load(folder).cells()] == [cell.setting]
        assert Journal.load(folder).said["complete"] == (status == 0)
        assert run.shown.lines[-2:] == [f"results: {folder}", f"report: {folder / 'report.html'}"]
    else:
        assert run.shown.lines[-1].startswith(f"the results could not be written to {folder}: ")
        assert any(line.startswith("Speedup over plain") for line in run.shown.lines), "though the run is quiet"


def test_a_part_of_a_job_is_a_run_of_its_shard_that_goes_on_in_its_own_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = list[list[str]]()

    def run(command: list[str], check: bool) -> SimpleNamespace:
        ran.append(command)
        return SimpleNamespace(returncode=3)

    monkeypatch.setattr(subprocess, "run", run)
    assert run_shard(["-k", "one"], "2/3", "there") == 3
    kept = ["--specdec-results", "there", "--specdec-resume", "--specdec-shard", "2/3"]
    assert ran == [[sys.executable, "-m", "pytest", "-k", "one", *kept]]


PARTS = {
    "comparison": "ComparisonPlugin",
    "devices": "DevicePlugin",
    "kernels": "KernelPlugin",
    "gate": "GatePlugin",
    "decoding": "DecodingPlugin",
    "load": "LoadPlugin",
    "conversations": "ConversationPlugin",
    "shards": "ShardPlugin",
    "ranks": "RankedPlugin",
    "serving": "ServingPlugin",
}
"""The parts of the plugin by the names under which other plugins find them."""


@pytest.mark.parametrize("gated", [True, False])
def test_the_parts_of_the_plugin_are_registered_by_their_names_and_the_gate_where_it_is_asked_for(
    gated: bool, pytester: pytest.Pytester
) -> None:
    config = pytester.parseconfigure("-p", "benchmark", *(["--gate-save=new.json"] if gated else []))
    parts = {name: config.pluginmanager.get_plugin(f"specdec-{name}") for name in PARTS}
    found = {name: type(part).__name__ for name, part in parts.items() if part is not None}
    assert found == {name: kind for name, kind in PARTS.items() if gated or name != "gate"}
    marked = {line.partition(":")[0].partition("(")[0] for line in config.getini("markers")}
    jobs = {"kernels", "decoding", "load", "conversations", "serving"}
    assert marked >= {"cuda", "mps", "gpu", "museum", "gate", "fake_gpu", "slow", *jobs}
