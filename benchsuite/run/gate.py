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
from benchsuite.gate.verdict import Finding, GateVerdict
from benchsuite.run.judged import GateItem, JudgedRun, limit_of
from benchsuite.run.ranks import ELSEWHERE
from benchsuite.run.speculation import row_of
from benchsuite.values import plain_path
from specdec.amounts import amount

if TYPE_CHECKING:
    from benchsuite.measure.arms import Arm
    from benchsuite.measure.session import Bench

BenchOf = Callable[[], "Bench | None"]


class GatePlugin(JudgedRun):
    """The plugin object, registered if ``--gate`` or ``--gate-save`` is given.

    ``bench`` returns the Bench that measured our rows, or None; ``arm_of`` the arm of a row's name. Plain decoding once
    more is not gated. The verdict names peers of which no level compares anything.
    """

    def __init__(self, config: pytest.Config, given: Rules, bench: BenchOf, arm_of: Callable[[str], Arm]) -> None:
        super().__init__(config, given)
        self._bench, self._arm_of = bench, arm_of
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
        self.trial: Trial | None = None
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
                limit = limit_of(item)
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
            others = sorted(self._left["other jobs"])
            left = f" ({' and '.join(others)} has figures that no level compares)" if others else ""
            if ELSEWHERE["specdec_served"] not in others:
                raise pytest.UsageError(f"--gate: {NO_BENCHMARKS}, so nothing would be gated{left}; select some")
            if self.rules.gating:
                raise pytest.UsageError(f"--gate: {self._no_base_of_servers()}")
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

    def _no_base_of_servers(self) -> str:
        """Why servers, which are all that this run measures, have no base, and what to do."""
        named = "give the base an endpoint of its own, --specdec-endpoint base=…,head=… --gate-base base"
        if self.rules.base:
            return (
                f"servers are no part of a checkout, and {self.rules.base[:12]} is a revision: start its server beside "
                f"the other, or name the commands of both in --specdec-endpoint-start, and {named}"
            )
        return (
            f"{self.rules.file} is no baseline of servers: make one with --gate-save in a run of pytest -m serving, or "
            f"{named}"
        )

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

    @property
    def origins(self) -> dict[str, Any]:
        """See ``JudgedRun``."""
        trial = self.trial
        return {
            "head": dict(trial.head.made) if trial else None,
            "base": dict(trial.baseline.made) if trial and trial.baseline else None,
            "order": trial.order if trial and trial.order else None,
        }

    def find(self) -> list[Finding]:
        """The findings of the rows that this process measured; launches measure the others."""
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
            self.say,
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

    def save_baseline(self, exitstatus: int) -> None:
        """Write this run, and more launches of it if they are asked for."""
        if not self.rules.save or not self.wanted:
            return
        if exitstatus:
            raise GateError(f"--gate-save {self.rules.save}: some test failed, so nothing is written")
        refuse_foreign_modules()
        record = self._measured()
        if not record.rows:
            raise GateError(f"--gate-save {self.rules.save}: no row was measured, so nothing is written")
        more = sum(self.rules.launches) - 1 if self.rules.launches_given else 0
        for number in range(more):
            self.say(f"launch {number + 2} of {more + 1}")
            record = record.joined([self._launcher().measure()])
        record.save(self.rules.save)
        held = f"{amount(len(record.rows), 'row')}, {amount(more + 1, 'launch')}"
        self.wrote.append(f"saved {plain_path(str(self.rules.save))}: {held}")
        timed = sum(row.digest is None and not row.peer for row in record.rows.values())
        if timed and more + 1 < rules.NEEDED:
            self.wrote.append(
                f"{amount(timed, 'row has', 'rows have')} times and no counters (pytest-benchmark's): this file gates "
                f"them once it holds {rules.NEEDED} launches; save it with --gate-launches 13, gate with "
                "--gate-dedicated"
            )
