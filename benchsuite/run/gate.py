"""The gate as a pytest plugin: it selects the gated rows, judges them last, and fails the run. Imports no torch."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchsuite.gate import figures, plants, rules
from benchsuite.gate.environment import PinnedLayer, layers
from benchsuite.gate.launcher import NO_BENCHMARKS, Launcher, own_folders_first, refuse_foreign_modules
from benchsuite.gate.record import GateError, Record
from benchsuite.gate.rules import Rules
from benchsuite.gate.trial import SUITE, Limit, Trial, different, levels_of, refuse_too_few, refuse_unfit_anchor
from benchsuite.gate.verdict import Finding, GateVerdict, worst
from benchsuite.report import exports, findings, renderers
from benchsuite.run.capture import uncaptured
from benchsuite.run.ranks import ELSEWHERE
from benchsuite.run.speculation import row_of

if TYPE_CHECKING:
    from benchsuite.measure.arms import Arm
    from benchsuite.measure.session import Bench

BenchOf = Callable[[], "Bench | None"]


class GatePlugin:
    """The plugin object, registered if ``--gate`` or ``--gate-save`` is given.

    ``bench`` returns the Bench that measured our rows, or None; ``arm_of`` the arm of a row's name. Plain decoding once
    more is not gated. The verdict names peers of which no level compares anything.
    """

    def __init__(self, config: pytest.Config, given: Rules, bench: BenchOf, arm_of: Callable[[str], Arm]) -> None:
        self.config, self.rules, self._bench, self._arm_of = config, given, bench, arm_of
        rules.refuse_what_disables(config)
        self.baseline = Record.load(given.file) if given.file and given.file.exists() else None
        self.anchor = Record.load(given.anchor) if given.anchor else None
        # The device is unknown until rows have run; until then the baseline's device is assumed.
        self.levels = self._levels((self.baseline.made.get("machine") or {}).get("device") if self.baseline else None)
        if self.anchor:
            refuse_unfit_anchor(given, self.anchor)
        self.limits: dict[str, Limit] = {}
        self.wanted: dict[str, str | None] = {}  # the reason why a row was not measured, or None
        self._peers: dict[str, str] = {}  # the rows of peers, with their labels
        self._left: dict[str, set[str]] = {"controls": set(), "other jobs": set()}  # what no level compares
        self._known: set[str] = set()  # ids of tests that declare the benchmark fixture
        self.findings: list[Finding] | None = None
        self.trial: Trial | None = None
        self.wrote: list[str] = []
        self.compared = True
        self._layers = (PinnedLayer(), PinnedLayer())

    def _levels(self, device: str | None) -> tuple[int, ...]:
        base = self.baseline
        mismatch = different(base.made, {"machine": figures.machine(device)}) if base else None
        try:
            return levels_of(self.rules, base, mismatch is None)
        except GateError as error:
            which = f"--gate-against {self.rules.file}: " if base else ""
            raise GateError(f"{which}{error}" + (f" ({mismatch})" if mismatch else "")) from None

    @pytest.hookimpl(tryfirst=True)
    def pytest_generate_tests(self) -> None:
        """Let plugins be imported from the launch's own checkout."""
        own_folders_first()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Append one item for each gated row and one for the suite, after all other items."""
        for item in items:
            if "benchmark" in getattr(item, "fixturenames", ()):
                self._known.add(item.nodeid)
            fixtures, name, arm = getattr(item, "fixturenames", ()), self._row(item), self._arm(item)
            self._left["other jobs"] |= {ELSEWHERE[fixture] for fixture in ELSEWHERE.keys() & {*fixtures}}
            if arm and arm.eager:
                self._left["controls"].add(arm.label)
            if name is not None:
                if arm and arm.peer:
                    self._peers[name] = arm.label
                self.wanted[name] = "its test did not run"
                limit = _limit(item)
                if self.limits.setdefault(name, limit) != limit:
                    raise pytest.UsageError(f"two tests measure the row {name!r} and their gate markers differ")
        if self.rules.gating and self.wanted:
            items += [GateItem.from_parent(session, name=name, gate=self) for name in (*self.wanted, SUITE)]

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self) -> None:
        """Add the slowdowns of ``--gate-plant`` to the engines, which are built by now."""
        bench, text = self._bench(), self.rules.plant
        if bench is not None and text:
            try:
                plants.plant_in(bench, text)
            except GateError as error:
                raise pytest.UsageError(str(error)) from None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Raise UsageError before anything is measured if the run could not be compared afterwards."""
        if self.config.option.collectonly or session.testsfailed:
            return
        if not self.wanted:
            raise pytest.UsageError(f"--gate: {NO_BENCHMARKS}, so nothing would be gated; select some")
        if self.rules.gating:
            try:
                ours = len(self.wanted) - len(self._peers)
                refuse_too_few(self.rules, self.levels, max(ours, len(self._peers)), self.baseline)
                if self.rules.own_environment and self.rules.base:
                    self._layers = layers(self._launcher().root(), self.rules.base)
            except GateError as error:
                raise pytest.UsageError(str(error)) from None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Record why a row was not measured."""
        result = yield
        name = self._row(item)
        if name is not None:
            if result.skipped:
                longrepr = result.longrepr
                why = longrepr[2] if isinstance(longrepr, tuple) else result.longreprtext or "no reason"
                self.wanted[name] = f"its test was skipped: {why.splitlines()[-1]}"
            elif result.failed:
                self.wanted[name] = "its test failed"
            elif result.when == "call":
                self.wanted[name] = None
        return result

    def _row(self, item: pytest.Item) -> str | None:
        """The name of the gated row that an item measures, or None."""
        arm = self._arm(item)
        if arm is not None:
            return None if arm.again or arm.eager else row_of(item)
        return item.nodeid if "benchmark" in getattr(item, "fixturenames", ()) else None

    def _arm(self, item: pytest.Item) -> Arm | None:
        name = row_of(item)
        return None if name is None else self._arm_of(name)

    @property
    def ungated(self) -> dict[str, list[str]]:
        """What was measured and compared with nothing: peers, plain op by op, by their labels, new rows, other jobs,
        and, by rows, the acceptance of controllers that read the clock."""
        judged = {
            finding.row for finding in self.findings or () if finding.figure or finding.verdict != GateVerdict.PASS
        }
        peers = dict.fromkeys(label for name, label in self._peers.items() if name not in judged)
        new, clocked = (self.trial.new, self.trial.clocked) if self.trial else ([], [])
        return {
            "peers": [*peers],
            "acceptance": clocked,
            "new": new,
            **{what: sorted(names) for what, names in self._left.items()},
        }

    def judge(self) -> list[Finding]:
        """The findings of this run, computed by the first call."""
        if self.findings is None:
            # If the gate itself raises, the first item shows the traceback and the others do not run it again.
            self.findings = [Finding(SUITE, 0, GateVerdict.ERROR, "the gate broke; its first item shows where")]
            self.findings = self._judge()
        return self.findings

    def _judge(self) -> list[Finding]:
        head = self._measured()
        unknown = self._unknown()
        if unknown:
            return [Finding(SUITE, 0, GateVerdict.ERROR, f"measured, but not by a test that the gate knows: {unknown}")]
        try:
            levels = self._levels((head.made.get("machine") or {}).get("device"))
        except GateError as error:
            return [Finding(SUITE, 0, GateVerdict.ERROR, str(error))]
        self.trial = Trial(
            self.rules,
            levels,
            self._launcher(),
            head,
            self.wanted,
            self.baseline,
            self._print,
            self.limits,
            self.anchor,
        )
        file, lacking = self.rules.file, {name: why for name, why in self.wanted.items() if why}
        if file and self.baseline is None and head.rows:
            if lacking:
                return [
                    Finding(name, 0, GateVerdict.ERROR, f"no baseline was made: {why}") for name, why in lacking.items()
                ]
            self._accept(file, "made the baseline that was not there")
            self.compared = False
            return [Finding(name, 0, GateVerdict.PASS, "written down, compared with nothing") for name in self.wanted]
        found = self.trial.findings()
        if file and self.rules.update:
            if not lacking and not any(finding.verdict == GateVerdict.ERROR for finding in found):
                self._accept(file, "the baseline is now this run")
            else:
                self.wrote.append(f"not written: {file}, because of the errors above")
        return found

    def _unknown(self) -> str:
        """Names of benchmarks that requested their fixture at run time and therefore have no gate item."""
        found = getattr(getattr(self.config, "_benchmarksession", None), "benchmarks", [])
        return ", ".join(sorted({bench.fullname for bench in found if bench} - self._known))

    def _print(self, text: str) -> None:
        with uncaptured(self.config):
            writer = self.config.get_terminal_writer()
            writer.line(f"gate: {text}")
            writer.flush()

    def _launcher(self) -> Launcher:
        params = self.config.invocation_params
        # In pytest's order. A launch ignores the addopts of ini file and environment, so they are added here.
        arguments = [*self.config.getini("addopts"), *shlex.split(os.environ.get("PYTEST_ADDOPTS", "")), *params.args]
        given = rules.without_own([str(a) for a in arguments])
        # Otherwise the arguments are the ini file's testpaths, or the folder where pytest was started.
        named = self.config.args_source == pytest.Config.ArgsSource.ARGS
        names = self.config.args if named else ()
        return Launcher(given, params.dir, self.rules.pairs, self.rules.path, names, self._layers)

    def _measured(self) -> Record:
        bench = self._bench()
        rows = figures.measured(bench) if bench else {}
        found = getattr(getattr(self.config, "_benchmarksession", None), "benchmarks", [])
        rows |= figures.benchmarks(found, [name for name in self.wanted if name not in rows])
        rows = {name: row for name, row in rows.items() if name in self.wanted and self.wanted[name] is None}
        return Record(figures.record_origin(self.config.invocation_params.dir, bench.device if bench else None), rows)

    def _accept(self, file: Path, message: str) -> None:
        """Write this run over the baseline, with at least as many launches as the baseline has."""
        assert self.trial is not None
        record, needed = self.trial.head, self.baseline.launches if self.baseline else 1
        if record.launches < needed:
            record = record.joined([self._launcher().measure() for _ in range(needed)]).last(needed)
        if self.baseline and self.rules.on_missing == "report":
            kept = {name: row for name, row in self.baseline.rows.items() if name not in self.wanted}
            record = Record(record.made, {**kept, **record.rows})
        record.save(file)
        self.wrote.append(f"{message}: {file}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write the requested files. If that fails, the run ends with pytest's exit code for usage errors."""
        if self.config.option.collectonly or exitstatus not in (0, 1):
            return
        try:
            self._write(exitstatus)
        except (GateError, OSError) as error:
            self.wrote.append(f"ERROR: {error}")
            if exitstatus == 0:
                session.exitstatus = pytest.ExitCode.USAGE_ERROR
        if self.rules.gating and exitstatus == 0:
            # Other plugins may leave out gate items (--lf, --setup-only); the findings fail the run nevertheless.
            if self.findings is None:
                self.wrote.append("ERROR: the gate was asked for and no gate item ran, so nothing was compared")
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
            elif any(self.blocks(finding) for finding in self.findings):
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def blocks(self, finding: Finding) -> bool:
        """Whether a finding fails the run."""
        given, verdict = self.rules, finding.verdict
        if given.mode == "report" or (given.update and verdict != GateVerdict.ERROR):
            return False
        if verdict == GateVerdict.INCONCLUSIVE:
            return given.inconclusive == "fail"
        return verdict in (GateVerdict.REGRESSED, GateVerdict.ERROR)

    def _write(self, exitstatus: int) -> None:
        if self.rules.save:
            if exitstatus:
                raise GateError(f"--gate-save {self.rules.save}: some test failed, so nothing is written")
            refuse_foreign_modules()
            record = self._measured()
            if not record.rows:
                raise GateError(f"--gate-save {self.rules.save}: no row was measured, so nothing is written")
            more = sum(self.rules.launches) - 1 if self.rules.launches_given else 0
            for number in range(more):
                self._print(f"launch {number + 2} of {more + 1}")
                record = record.joined([self._launcher().measure()])
            record.save(self.rules.save)
            self.wrote.append(f"baseline: {self.rules.save}, {len(record.rows)} rows, {more + 1} launches")
            if more + 1 < rules.NEEDED and any(row.digest is None for row in record.rows.values()):
                self.wrote.append(
                    "plain benchmarks have no counters: against a file they can be gated only with --gate-dedicated, "
                    f"and it takes {rules.NEEDED} launches or more (--gate-launches 13)"
                )
        if self.findings is not None:
            if self.rules.json:
                self.rules.json.write_bytes(exports.as_json(self.findings, self.trial).encode())
                self.wrote.append(f"verdicts: {self.rules.json}")
            for kind, file in self.rules.exports:
                file.write_bytes(exports.FORMATS[kind](self.findings, self.blocks).encode())
                self.wrote.append(f"{kind}: {file}")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the table of verdicts, the next action, and the files that were written."""
        if self.findings is None and not self.wrote:
            return
        terminalreporter.section("gate", sep="-")
        if self.findings:
            for line in renderers.section_lines(findings.findings_section(self.findings)):
                terminalreporter.write_line(line)
            overall = worst(finding.verdict for finding in self.findings)
            sentence = findings.run_sentence(self.findings, self.rules, self.compared, self.ungated)
            terminalreporter.write_line(f"\n{overall}: {sentence}", bold=True)
        for line in self.wrote:
            terminalreporter.write_line(line)


class GateItem(pytest.Item):
    """The verdict on one row as a test item; it fails if a finding on the row fails the run."""

    def __init__(self, *, gate: GatePlugin, name: str, **more: Any) -> None:
        super().__init__(name=name, nodeid=f"gate::{name}", **more)
        self.gate = gate

    def runtest(self) -> None:
        """Fail with all findings on the row that fail the run."""
        every = self.gate.judge()
        # A self-test measures each row twice and appends the variant to its name, in brackets.
        found = [finding for finding in every if finding.row == self.name or finding.row.startswith(f"{self.name} (")]
        blocking = [finding for finding in found if self.gate.blocks(finding)]
        if blocking:
            pytest.fail("\n".join(findings.finding_sentence(finding) for finding in blocking))
        if not found and self.name != SUITE and any(self.gate.blocks(finding) for finding in every):
            pytest.fail("it was not compared: see what is said of the others and of the suite")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The message without a traceback, unless the gate itself raised."""
        return (
            str(excinfo.value) if excinfo.errisinstance(pytest.fail.Exception) else super().repr_failure(excinfo, style)
        )

    def reportinfo(self) -> tuple[Any, int | None, str]:
        """The location that pytest reports for the item."""
        return self.config.rootpath, None, f"gate: {self.name}"


def _limit(item: pytest.Item) -> Limit:
    marker = item.get_closest_marker("gate")
    if marker is None:
        return Limit()
    if marker.args or not marker.kwargs.keys() <= {"tolerance", "level"}:
        raise pytest.UsageError(
            f"{item.nodeid}: the marker gate takes tolerance=… (a fraction) and level=… (0, 1, 2 or 3), got "
            f"{marker.args or ''}{marker.kwargs or ''}"
        )
    limit = Limit(**marker.kwargs)
    if limit.tolerance is not None and not 0 < limit.tolerance < 1:
        raise pytest.UsageError(f"{item.nodeid}: the marker's tolerance is {limit.tolerance!r}; 0.03 is 3 %")
    if limit.level not in (None, 0, 1, 2, 3):
        raise pytest.UsageError(f"{item.nodeid}: the marker's level is {limit.level!r}; expected 0, 1, 2 or 3")
    return limit
