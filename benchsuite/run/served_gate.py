"""The gate over servers as a pytest plugin: the endpoint of ``--gate-base`` is what every other one is held against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from benchsuite.gate import rules
from benchsuite.gate.figures import record_origin
from benchsuite.gate.record import DECODE, FIRST, GateError
from benchsuite.gate.rules import Rules
from benchsuite.gate.served import (
    ANSWERS,
    OUTPUTS,
    ServedRow,
    ServedTolerances,
    output_finding,
    served_findings,
    too_few,
)
from benchsuite.gate.trial import SUITE, UNJUDGED, Limit, different
from benchsuite.gate.verdict import Finding, GateVerdict
from benchsuite.measure.interval import FEWEST
from benchsuite.run.judged import GateItem, JudgedRun, limit_of
from benchsuite.run.served_baseline import ServedBaseline, is_of_servers
from benchsuite.run.serving import CERTIFICATES, ServingPlugin
from benchsuite.values import plain_path
from specdec.amounts import amount

if TYPE_CHECKING:
    from benchsuite.benches.serving.bench import ServingBench
    from benchsuite.benches.serving.load import Traffic

LIVE, STORED = (0, 2), (0, 1)
"""The levels at which servers are held against each other, and against a file: counts and outputs, and times."""

OTHERS = ("specdec_row", "benchmark")
"""Fixtures of rows that no endpoint is the base of."""


class ServedGatePlugin(JudgedRun):
    """The plugin object, registered if ``--gate-base`` names an endpoint or a file of servers, and beside the other
    one if a file is only written, which may become one of servers.

    A row is an endpoint under a load, ``head-c4``; ``head-outputs`` is what its certificate says.
    """

    def __init__(self, config: pytest.Config, given: Rules, serving: ServingPlugin) -> None:
        super().__init__(config, given)
        rules.refuse_workers(config)
        if given.gating:
            _refuse_idle(given)
        self.serving = serving
        self.base = given.endpoint or (serving.request.endpoint[0].name if serving.request.endpoint else "")
        self.stored = ServedBaseline.load(given.file) if is_of_servers(given.file) and given.file else None
        self.levels = given.levels or (STORED if self.stored else LIVE)
        self.limits: dict[str, Limit] = {}  # by the loads' names
        self.foreign: str | None = None  # a row that is no server's
        self.rows: list[ServedRow] = []
        self._left: list[str] = []

    @property
    def heads(self) -> list[str]:
        """The names of the endpoints that are held against the base: against a file, of all."""
        return [one.name for one in self.serving.request.endpoint if self.stored or one.name != self.base]

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Append one item for each gated row and one for the suite, after all other items."""
        for item in items:
            fixtures: Any = getattr(item, "fixturenames", ())
            load = getattr(item, "callspec", None) and item.callspec.params.get(ServingPlugin.fixture)  # type: ignore[attr-defined]
            if load:
                limit = limit_of(item)
                if self.limits.setdefault(load, limit) != limit:
                    raise pytest.UsageError(f"two tests measure the load {load!r} and their gate markers differ")
            self.foreign = self.foreign or (item.nodeid if {*OTHERS} & {*fixtures} else None)
        certified = any(CERTIFICATES in getattr(item, "fixturenames", ()) for item in items)
        outputs = [OUTPUTS] if certified and not self.stored else []
        names = [f"{head}-{what}" for what in (*self.limits, *outputs) for head in self.heads]
        if self.limits and self.rules.gating:
            items += [GateItem.from_parent(session, name=name, gate=self) for name in (*names, SUITE)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Raise UsageError before anything is timed if the run could not be judged afterwards."""
        if self.config.option.collectonly or session.testsfailed:
            return
        if not self.rules.gating:
            return
        named = f"--gate-base {self.base} names an endpoint"
        if self.stored:
            named = f"--gate-against {self.rules.file} is a baseline of servers"
        if not self.limits:
            raise pytest.UsageError(
                f"{named} and this run has no test of servers: run pytest --pyargs benchsuite.test_serving -m serving, "
                + (
                    "or take a file of the rows that are measured here"
                    if self.stored
                    else f"or for a revision of that name write refs/heads/{self.base}, for a file ./{self.base}"
                )
            )
        if self.foreign:
            raise pytest.UsageError(
                f"{named}, which is no base of {self.foreign}: run pytest -m serving by itself, and the others with "
                "--gate-against FILE or REV"
            )
        for load in self._loads().values():
            blocks = [*self._bench().planned(load)]
            groups, rounds = len({block.group for block in blocks}), self._bench().plan.rounds
            if too_few(groups, rounds):
                raise pytest.UsageError(
                    f"--gate: {groups} groups of requests in {rounds} rounds under {load.label} decide nothing: it "
                    f"takes {FEWEST} of either; more prompts (--specdec-prompts, --specdec-workload) or "
                    f"--specdec-pairs {FEWEST}"
                )

    def _bench(self) -> ServingBench:
        bench = self.serving.bench
        assert bench is not None, "a run without servers was refused"
        return bench

    def _loads(self) -> dict[str, Traffic]:
        """The loads of this run's items, by their names."""
        return {name: load for name, load in self.serving.loads.items() if name in self.limits}

    def find(self) -> list[Finding]:
        """The findings of every server but the base, under every load, and of its outputs."""
        if self.stored:
            return self._against_file(self.stored)
        from benchsuite.run.served_rows import served_rows

        bench, given = self._bench(), self.rules
        workloads = [label for label, _ in bench.plan.prompts]
        lacking = list[Finding]()
        for name, load in self._loads().items():
            blocks = bench.blocks.get(load, [])
            answered = {block.endpoint for block in blocks}
            lacking += [
                Finding(f"{head}-{name}", 0, GateVerdict.ERROR, "it was not measured: the test of this load broke off")
                for head in self.heads
                if not {head, self.base} <= answered
            ]
            heads = [head for head in self.heads if {head, self.base} <= answered]
            rows = served_rows(blocks, self.base, heads, load, workloads, bench.plan.slo, given.alpha)
            self.rows += [replace(row, tolerance=self.limits[name].tolerance) for row in rows]
        kept = self._judged(served_findings(self.rows, self.tolerances(), given.alpha))
        self._left += self._uncertified()
        if 0 in self.levels:
            kept += [output_finding(one.endpoint, one.state, one.lines[0]) for one in bench.certificates or ()]
        return self._unless_empty([*kept, *lacking])

    def _judged(self, every: list[Finding]) -> list[Finding]:
        """The findings of the levels of this run; what else there is, is named."""
        from benchsuite.run.served_rows import left_of

        kept = [one for one in every if one.level in self.levels or one.figure == ANSWERS]
        off = sorted({one.figure or "" for one in every if one not in kept})
        self._left += [*([f"{', '.join(off)} (--gate-level)"] if off else []), *left_of(self.rows)]
        return kept

    def _unless_empty(self, found: list[Finding]) -> list[Finding]:
        """The findings, or one more that fails the run if they judge nothing."""
        if any(one.figure or one.verdict == GateVerdict.ERROR for one in found):
            return found
        return [*found, Finding(SUITE, 0, GateVerdict.ERROR, UNJUDGED)]

    def _now(self) -> ServedBaseline:
        return ServedBaseline.of(self._bench(), record_origin(self.config.invocation_params.dir, None))

    def _against_file(self, base: ServedBaseline) -> list[Finding]:
        """The findings on the rows of this run and of the file: counts, and times over the first endpoint's."""
        from benchsuite.run.served_rows import stored_rows

        now, given = self._now(), self.rules
        other = sorted(name for name in {*now.work, *base.work} if now.work.get(name) != base.work.get(name))
        if other:
            said = f"measured otherwise than the baseline: other {', '.join(other)}; make it again with --gate-save"
            return [Finding(SUITE, 0, GateVerdict.ERROR, said)]
        why = self._untimed(now, base)
        if why:
            self._left.append(f"times ({why})")
        lacking = [
            Finding(name, 0, verdict, f"{side} has no such row{hint}")
            for names, side, hint, passing in (
                (now.rows.keys() - base.rows.keys(), "the baseline", ", let it pass with --gate-on-missing=new", "new"),
                (
                    base.rows.keys() - now.rows.keys(),
                    "this run",
                    ", let it pass with --gate-on-missing=report",
                    "report",
                ),
            )
            for name in sorted(names)
            for verdict in [GateVerdict.PASS if given.on_missing in (passing, "report") else GateVerdict.ERROR]
        ]
        common = sorted(now.rows.keys() & base.rows.keys())
        workloads = [label for label, _ in self._bench().plan.prompts]
        rows = stored_rows(now, base, common, workloads, not why, given.alpha)
        # A limit is of a load, which ends a row's name.
        self.rows = [replace(row, tolerance=self.limits[row.name.rpartition("-")[2]].tolerance) for row in rows]
        tolerances = replace(self.tolerances(), coarse=given.coarse_tolerance)
        kept = self._judged(served_findings(self.rows, tolerances, given.alpha, 1, self.base))
        self._left.append(f"{OUTPUTS} (they are certified by the first endpoint of this run)")
        found = self._unless_empty([*kept, *lacking])
        if given.update and given.file and not any(one.verdict == GateVerdict.ERROR for one in found):
            now.save(given.file)
            self.wrote.append(f"the baseline is now this run: {given.file}")
        return found

    def _untimed(self, now: ServedBaseline, base: ServedBaseline) -> str:
        """Why times of this run and of the file cannot be compared; empty if they can."""
        mismatch = different(base.made, now.made)
        if len(self.serving.request.endpoint) == 1:
            return "a single endpoint is timed over nothing"
        if not (now.local and base.local):
            return "a server is on another machine, of which nothing is known"
        return "" if self.rules.on_mismatch == "ignore" or not mismatch else f"another machine: {mismatch}"

    def tolerances(self) -> ServedTolerances:
        """What is let through: of times the option's where it is given, else the default of servers."""
        given, usual = self.rules, ServedTolerances()
        times = given.tolerance if given.tolerance_given else usual.times
        return ServedTolerances(times, given.ttft_tolerance, given.acceptance_tolerance, given.coarse_tolerance)

    def _uncertified(self) -> list[str]:
        """Why no output was compared, if none was."""
        if self._bench().certificates is not None and 0 in self.levels:
            return []
        why = self.serving.why_uncertified() or ("no test of them ran" if 0 in self.levels else "--gate-level")
        return [f"{OUTPUTS} ({why})"]

    @property
    def ungated(self) -> Mapping[str, list[str]]:
        """What was measured and is not judged, each with the reason."""
        return {"servers": self._left}

    @property
    def origins(self) -> dict[str, Any]:
        """One run has both sides: the order is in its blocks."""
        made = record_origin(self.config.invocation_params.dir, None)
        addresses = {one.name: one.url for one in self.serving.request.endpoint}
        return {
            "head": {**made, "endpoints": {name: addresses[name] for name in self.heads}},
            "base": {**made, "endpoints": {self.base: addresses.get(self.base)}},
            "order": {"seed": self.serving.request.seed},
        }

    def save_baseline(self, exitstatus: int) -> None:
        """Write the counts and times of this run's servers, unless the file is one of other rows."""
        if not self.rules.save or not self.limits:
            return
        if self.foreign:
            self.wrote.append("servers are in no baseline of other rows: run pytest -m serving by itself")
            return
        if exitstatus:
            raise GateError(f"--gate-save {self.rules.save}: some test failed, so nothing is written")
        now = self._now()
        now.save(self.rules.save)
        held = amount(len(now.rows), "row of servers", "rows of servers")
        self.wrote.append(f"saved {plain_path(str(self.rules.save))}: {held}")


def _refuse_idle(given: Rules) -> None:
    """GateError for options that mean nothing where servers are held against each other."""
    idle = {
        "--gate-anchor": given.anchor is not None,
        "--gate-self-test": given.self_test,
        "--gate-environment=own": given.own_environment,
        "--gate-dedicated": given.dedicated,
        "--gate-launches": given.launches_given,
    }
    named = [name for name, set_here in idle.items() if set_here]
    if named:
        raise GateError(
            f"{', '.join(named)} mean nothing for servers, which this suite does not launch: leave them out"
        )
    if given.endpoint and not {*(given.levels or LIVE)} <= {*LIVE}:
        raise GateError(
            "--gate-level 1 compares with a file; servers are held against each other at 0 (counts and outputs) and 2 "
            f"({DECODE}, {FIRST} and the other times)"
        )
    if given.file and not {*(given.levels or STORED)} <= {*STORED}:
        raise GateError(
            "--gate-level 2 compares servers that run now: name the base's endpoint, --gate-base base; against a file "
            "they are gated at 0 (counts) and 1 (times over the first endpoint's)"
        )
