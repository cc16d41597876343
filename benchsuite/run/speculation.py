"""The part of the plugin that compares strategies: an item for each arm, one measurement, tables and a results folder.

Imports no torch until an item that requests ``specdec_row`` is collected.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import pytest

from benchsuite.report.replay import replayed_seconds
from benchsuite.run.capture import uncaptured
from benchsuite.run.ranks import RankedPlugin
from benchsuite.run.results_folder import DIST, FOLDER, LINES, RunKeeper
from benchsuite.run.workers import FREE, scheduling, split_cells
from specdec.amounts import amount
from specdec.progress import Progress

if TYPE_CHECKING:
    from benchsuite.measure.arms import Arm
    from benchsuite.measure.cells import Cell
    from benchsuite.measure.measured import Measured
    from benchsuite.measure.plan import MeasuringPlan
    from benchsuite.measure.rows import Row
    from benchsuite.measure.session import Bench
    from benchsuite.run.request import RunRequest
    from benchsuite.store.journal import Lines


def row_of(item: pytest.Item) -> str | None:
    """Return the name of the row that an item asks ``specdec_row`` for; None if it asks for none."""
    params: dict[str, str] = getattr(getattr(item, "callspec", None), "params", {})
    return params.get("specdec_row")


class ComparisonPlugin:
    """Builds the arms of the run's matrix, measures them with a ``Bench``, and reports the results.

    A gate that saves a baseline times each row in at least its number of pairs.
    """

    def __init__(self, config: pytest.Config, request: RunRequest) -> None:
        self.config, self.request = config, request
        self.arms: dict[str, Arm] = {}
        self.bench: Bench | None = None
        self.measured: Measured | None = None  # the bench's own, or what the workers of pytest-xdist have measured
        self._refused: Exception | None = None  # an invalid option, found where pytest would print a traceback
        self._progress: Progress | None = None
        self.ranks_plugin = RankedPlugin(config, request)
        self._keeper = RunKeeper(config, request)
        self._lines: list[Lines] = []  # of pytest-xdist's workers
        self._session: Any = None
        self._predicted: dict[str, Any] | None = None
        self._unpredicted = ""
        self._split = ""  # why a worker of pytest-xdist measures nothing

    def cell_of(self, item: pytest.Item) -> str | None:
        """The name of what is measured at once for the row of an item; None if the item has none."""
        name = row_of(item)
        return self._cell_of_arm(name) if name in self.arms else None  # no row, or a matrix that was refused

    def _cell_of_arm(self, name: str) -> str:
        setting = self.arms[name].setting
        return (setting.without_workload if self.request.chooses else setting).id

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Give every test that requests ``specdec_row`` one item for each arm of the matrix."""
        if "specdec_row" not in metafunc.fixturenames:
            return
        if not self.arms and self._refused is None:
            self._build()
        cases = [pytest.param(name, marks=_marks(arm)) for name, arm in self.arms.items()]
        metafunc.parametrize("specdec_row", cases, indirect=True, ids=[*self.arms])

    def _build(self) -> None:
        from benchsuite.gate.launcher import measures_base
        from benchsuite.run.names import refuse_unknown_names
        from specdec.errors import SpecdecError

        request = self.request
        try:
            if not measures_base():
                refuse_unknown_names(request)
            from benchsuite.run import matrix  # imports torch

            if measures_base():
                request = matrix.known_part(request)
            self.arms = {arm.id: arm for arm in matrix.build_matrix(request)}
        except SpecdecError as error:
            self._refused = error

    @pytest.hookimpl(wrapper=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None]:
        """Mark the items of rows before any is deselected: pytest-benchmark's timer is ``replayed_seconds``."""
        has = self.config.pluginmanager.hasplugin
        for item in items if self._refused is None else ():
            name = row_of(item)
            if name is None:
                continue
            setting = self.arms[name].setting
            if has("benchmark"):
                group = f"{setting.target} {setting.workload}"
                item.add_marker(pytest.mark.benchmark(timer=replayed_seconds, group=group))
        return (yield)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Load and build all arms, and print the card. UsageError, before any test runs, if that is not possible."""
        option = self.config.option
        if self._refused is not None:
            raise pytest.UsageError(str(self._refused))
        self._session = session
        names = [*dict.fromkeys(name for item in session.items if (name := row_of(item)) is not None)]
        if not names or option.collectonly or getattr(option, "benchmark_skip", False):
            return
        from specdec.errors import SpecdecError

        cells = [(item.nodeid, cell) for item in session.items if (cell := self.cell_of(item))]
        dist = getattr(self.config, "workerinput", {}).get(DIST, "")
        if split := next(split_cells(dist, cells), None):
            self._split = (
                f"pytest-xdist's --dist {dist} sends rows of {split} to several workers, and each would measure all of "
                "them, at the same time; use --dist load, or leave out -n"
            )
            return
        try:
            # In the order of the options, whatever that of the items is.
            arms = [arm for name, arm in self.arms.items() if name in names]
            self.bench = self.measured = self._prepared(arms, [self.arms[name] for name in names])
        except SpecdecError as error:
            if self._keeper.journal is not None and self._keeper.given is None:
                self._keeper.journal.give_up()
            raise pytest.UsageError(str(error)) from None
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None and self.config.option.verbose >= 0:
            from benchsuite.report.renderers import wrapped

            reporter.section("specdec-bench", sep="-")
            for line in wrapped(self.bench.card):
                reporter.write_line(line)

    def _prepared(self, arms: list[Arm], turns: list[Arm]) -> Bench:
        """Load and build the arms; ``turns`` are these in the order of pytest's items, which all ranks share."""
        from benchsuite.measure.session import Bench
        from specdec.devices import be_deterministic
        from specdec.ranks import on_all_ranks

        config = self.config
        plan = self._plan()
        with uncaptured(config):
            self.ranks_plugin.begin(turns, self.request.gate is not None, self._abandon)
        with on_all_ranks("the folder of results"):
            if self.ranks_plugin.first:
                self._keeper.begin([*self.arms.values()])
        said = [be_deterministic(self.request.seed)] if self.request.deterministic else []
        bench = Bench(plan, self._abandon, self._keep)
        bench.card.extend([*said, *self._keeper.repeated()])
        arms = self._keeper.go_on(bench, arms)
        with uncaptured(config), on_all_ranks("loading and building"):
            bench.prepare(arms)
        return bench

    def _keep(self, cell: Cell) -> None:
        """Write a cell; where there is no room, measure no more: what is measured is shown, and written at the end."""
        assert self.bench is not None
        self._keeper.keep(cell, self.bench)
        if self._keeper.full and self.ranks_plugin.ranks is not None:
            self.ranks_plugin.ranks.end(self._keeper.full)
        if self._keeper.full:
            self._session.shouldstop = self._keeper.full
        elif self._keeper.journal and self.request.profile:
            self.bench.trace(cell.setting, self._keeper.journal.traces())

    def _plan(self) -> MeasuringPlan:
        """The plan of this request. SpecdecError for what this process cannot do."""
        from benchsuite.measure.conditions import known_conditions
        from benchsuite.measure.plan import MeasuringPlan

        request, gate = self.request, self.request.gate
        self._check_predict()
        return MeasuringPlan(
            prompts=request.prompts or (1 if request.dry_run else None),
            pairs=request.pairs or 1,
            least=gate.pairs if gate and gate.save else 1,
            precision=request.precision,
            budget=request.budget,
            timeout=request.timeout,
            baseline=request.baseline,
            dry=request.dry_run,
            judge=request.judge,
            debug=request.debug,
            graphs=request.graphs == "auto",
            exact=request.exact,
            across=known_conditions(request.across),
        )

    def _check_predict(self) -> None:
        """Refuse a prediction that this process cannot make."""
        from specdec.errors import SpecdecError

        given = self.request.predict
        if given == "off":
            return
        if hasattr(self.config, "workerinput"):
            unfit = "pytest-xdist's processes disturb each other's costs: leave out -n"
        elif self.ranks_plugin.ranks:
            unfit = "costs of a target over several processes are not probed: run one process"
        else:
            return
        raise SpecdecError(f"--specdec-predict {given}: {unfit}, or --specdec-predict")

    def _predict(self, bench: Bench) -> dict[str, str]:
        """Predict what was measured, if that is wished for; returns the files that say it, by their names."""
        given = self.request.predict
        if given == "off" or not bench.cells:
            return {}
        from benchsuite.machine.files import strict_json
        from benchsuite.predict.forecasts import forecasts_of
        from benchsuite.report.predicted import forecast_json, forecast_section
        from benchsuite.report.renderers import section_lines
        from specdec.errors import SpecdecError

        try:
            with uncaptured(self.config):
                found = forecasts_of(bench, given)
        except SpecdecError as error:
            self._unpredicted = f"not predicted: {error}"
            return {}
        self._predicted = forecast_json(found)
        return {
            "prediction.json": strict_json(self._predicted),
            "prediction.txt": "\n".join(section_lines(forecast_section(self._predicted), titled=False)) + "\n",
        }

    def _abandon(self, what: str) -> None:
        """Write and show what is finished, from the watchdog's thread: the process ends after this."""
        if self.bench is not None:
            self.bench.card.append(f"ended early: {what}")
            self._keeper.write(self.bench, complete=False)
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            self.pytest_terminal_summary(reporter)
            reporter.flush()
        finished = amount(len(self.bench.rows) if self.bench is not None else 0, "row was", "rows were") + " finished"
        print(
            f"\nspecdec-bench: {what}\n{finished}; {self._keeper.outcome or 'no --specdec-results'}",
            file=sys.stderr,
            flush=True,
        )

    def row(self, name: str) -> Row:
        """The measured row of an arm; fails the requesting test if its workload cannot be measured."""
        from specdec.errors import SpecdecError, folded

        if self._split:
            pytest.fail(folded(self._split), pytrace=False)
        assert self.bench is not None
        try:
            with uncaptured(self.config):
                return self.bench.row(self.arms[name], self._tick(self.bench))
        except SpecdecError as error:
            said = str(error)
        pytest.fail(folded(f"{name}: {said}"), pytrace=False)

    def _tick(self, bench: Bench) -> Callable[[str], None]:
        if not self.ranks_plugin.first:
            return lambda what: None
        if self._progress is None:
            self._progress = Progress(bench.ticks, "runs")
        return self._progress.step

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write the results folder; the controller of pytest-xdist writes what its workers have measured."""
        if self._progress is not None:
            self._progress.close()
        predictions: dict[str, str] = {}
        if self.bench is not None:
            predictions = self._predict(self.bench)
            self.bench.close()
        if self._lines and self._keeper.journal is not None:
            for lines in self._lines:
                self._keeper.journal.note(lines)
            self.measured = self._keeper.journal.measured()
        if self.measured is not None and not self._keeper.write(self.measured, exitstatus == 0, predictions):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        """Send all items of a cell to one worker. Where files or scopes are kept together, rows are as well."""
        return scheduling(config, log, self._cell_of_id) if config.getvalue("dist") in FREE else None

    def _cell_of_id(self, nodeid: str) -> str | None:
        """``cell_of`` in the controller, which collects no items; the matrix is built if a name may be a row's."""
        given = nodeid.partition("[")[2].removesuffix("]")
        if not any(target.replace("/", ":") in given for target in self.request.target):
            return None
        if not self.arms and self._refused is None:
            self._build()
        if self._refused is not None:  # a worker may know more: it has read every conftest.py
            return "rows of a matrix that is not known here"
        names = [name for name in self.arms if f"-{name}-" in f"-{given}-"]
        return self._cell_of_arm(max(names, key=len)) if names else None

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Give pytest-xdist's workers one folder for their cells, and say how tests are distributed."""
        node.workerinput[DIST] = self.config.option.dist
        if self._keeper.journal is None and self.request.results:
            from specdec.errors import SpecdecError

            try:
                self._build()
                if self._refused is not None:
                    raise pytest.UsageError(str(self._refused))
                self._keeper.begin([*self.arms.values()])
            except SpecdecError as error:
                raise pytest.UsageError(str(error)) from None
        if self._keeper.journal is not None:
            node.workerinput[FOLDER] = str(self._keeper.journal.folder)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Take a worker's lines."""
        self._lines.append(getattr(node, "workeroutput", {}).get(LINES, {}))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the tables."""
        if self.measured is not None and self.measured.rows:
            from benchsuite.report.renderers import WIDTH, section_lines, wrapped
            from benchsuite.report.speculation import speculation_document

            document = speculation_document(self.measured.results(), predicted=self._predicted)
            # What could not be written is shown, however quiet the run is.
            quiet, tables = self.config.option.verbose < 0 and not self._keeper.full, list[str]()
            for section in () if quiet else document.sections:
                if not section.detail and (lines := section_lines(section, titled=False)):
                    tables += ["", f" {section.title} ".center(WIDTH, "-"), *lines]
            answer = wrapped([line for line in (self._unpredicted, *document.lead) if line])
            # A reader looks first at the top of a log, and at the bottom of a terminal.
            first = quiet or not terminalreporter.isatty
            terminalreporter.section(document.title, sep="=")
            for line in [*answer, *tables] if first else [*tables, "", *answer]:
                terminalreporter.write_line(line)
            rest = "tables: without -q, or in the report of --specdec-results FOLDER" if quiet else ""
            for line in (self._keeper.outcome or rest).splitlines():
                terminalreporter.write_line(line)
        elif any(self._lines):
            terminalreporter.section("Speculative decoding", sep="=")
            terminalreporter.write_line("pytest-xdist's workers have measured the rows, and nobody shows them: give")
            terminalreporter.write_line(
                "--specdec-results FOLDER, or leave out -n, beside which no time is undisturbed"
            )


def _marks(arm: Arm) -> list[pytest.MarkDecorator]:
    from specdec.devices import kind_of

    kind = kind_of(arm.setting.device)
    marks = [getattr(pytest.mark, kind), pytest.mark.gpu] if kind in ("cuda", "mps") else []
    return marks if arm.setting.target == "tiny" else [*marks, pytest.mark.slow]
