"""What every gate of a run does, whatever it compares: items for the verdicts, what fails the run, files, a summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from benchsuite.gate.record import GateError
from benchsuite.gate.rules import Rules
from benchsuite.gate.trial import SUITE, Limit
from benchsuite.gate.verdict import Finding, GateVerdict, worst
from benchsuite.report import exports, findings, renderers
from benchsuite.run.capture import uncaptured
from specdec.errors import folded


class JudgedRun:
    """The part of a pytest plugin that judges a run last and fails it. Subclasses say what is compared.

    ``findings``: those of ``judge``, None until it is called. ``wrote``: lines about files, below the verdict.
    ``compared`` is False where the run only made a baseline.
    """

    def __init__(self, config: pytest.Config, given: Rules) -> None:
        self.config, self.rules = config, given
        self.findings: list[Finding] | None = None
        self.wrote: list[str] = []
        self.compared = True

    def find(self) -> list[Finding]:
        """Compare, and return the findings; called once."""
        raise NotImplementedError

    def save_baseline(self, exitstatus: int) -> None:
        """Write the file of ``--gate-save``, if it is given. GateError if there is nothing to write."""
        raise NotImplementedError

    @property
    def ungated(self) -> Mapping[str, Sequence[str]]:
        """What was measured and compared with nothing, by what it is."""
        raise NotImplementedError

    @property
    def origins(self) -> Mapping[str, Any]:
        """Of both sides, ``head`` and ``base``, where their figures come from; and the ``order`` in which they ran."""
        raise NotImplementedError

    def judge(self) -> list[Finding]:
        """The findings of this run, computed by the first call."""
        if self.findings is None:
            # If the gate itself raises, the first item shows the traceback and the others do not run it again.
            self.findings = [Finding(SUITE, 0, GateVerdict.ERROR, "the gate broke; its first item shows where")]
            self.findings = self.find()
        return self.findings

    def say(self, text: str) -> None:
        """Print a line of progress, also while pytest captures the output."""
        with uncaptured(self.config):
            writer = self.config.get_terminal_writer()
            if writer.width_of_current_line:  # behind an item's location
                writer.line()
            writer.line(f"gate: {text}")
            writer.flush()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write the requested files. If that fails, the run ends with pytest's exit code for usage errors."""
        if self.config.option.collectonly or exitstatus not in (0, 1):
            return
        try:
            self.save_baseline(exitstatus)
            self._export()
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

    def _export(self) -> None:
        if self.findings is None:
            return
        if self.rules.json:
            self.rules.json.write_bytes(exports.as_json(self.findings, self.origins).encode())
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
            terminalreporter.write_line("\n" + folded(f"{overall}: {sentence}"), bold=True)
        for line in self.wrote:
            terminalreporter.write_line(folded(line))


class GateItem(pytest.Item):
    """The verdict on one row as a test item; it fails if a finding on the row fails the run."""

    def __init__(self, *, gate: JudgedRun, name: str, **more: Any) -> None:
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


def limit_of(item: pytest.Item) -> Limit:
    """What the marker ``gate`` of an item says. UsageError for a marker that says something else."""
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
