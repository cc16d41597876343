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
from benchsuite.gate.trial import SUITE, UNJUDGED, Limit
from benchsuite.gate.verdict import Finding, GateVerdict
from benchsuite.measure.interval import FEWEST
from benchsuite.run.judged import GateItem, JudgedRun, limit_of
from benchsuite.run.serving import CERTIFICATES, ServingPlugin

if TYPE_CHECKING:
    from benchsuite.benches.serving.bench import ServingBench
    from benchsuite.benches.serving.load import Traffic

LIVE = (0, 2)
"""The levels at which servers are held against each other: counts and outputs, and times."""

OTHERS = ("specdec_row", "benchmark")
"""Fixtures of rows that no endpoint is the base of."""


class ServedGatePlugin(JudgedRun):
    """The plugin object, registered if ``--gate-base`` names an endpoint.

    A row is an endpoint under a load, ``head-c4``; ``head-outputs`` is what its certificate says.
    """

    def __init__(self, config: pytest.Config, given: Rules, serving: ServingPlugin) -> None:
        super().__init__(config, given)
        rules.refuse_workers(config)
        _refuse_idle(given)
        self.serving = serving
        self.base = given.endpoint or ""
        self.levels = given.levels or LIVE
        self.limits: dict[str, Limit] = {}  # by the loads' names
        self.foreign: str | None = None  # a row that is no server's
        self.rows: list[ServedRow] = []
        self._left: list[str] = []

    @property
    def heads(self) -> list[str]:
        """The names of the endpoints that are held against the base."""
        return [one.name for one in self.serving.request.endpoint if one.name != self.base]

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
        outputs = [OUTPUTS] if any(CERTIFICATES in getattr(item, "fixturenames", ()) for item in items) else []
        names = [f"{head}-{what}" for what in (*self.limits, *outputs) for head in self.heads]
        if self.limits:
            items += [GateItem.from_parent(session, name=name, gate=self) for name in (*names, SUITE)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Raise UsageError before anything is timed if the run could not be judged afterwards."""
        if self.config.option.collectonly or session.testsfailed:
            return
        named = f"--gate-base {self.base} names an endpoint"
        if not self.limits:
            raise pytest.UsageError(
                f"{named} and this run has no test of servers: run pytest --pyargs benchsuite.test_serving -m serving, "
                f"or for a revision of that name write refs/heads/{self.base}, for a file ./{self.base}"
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
        from benchsuite.run.served_rows import left_of, served_rows

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
        every = served_findings(self.rows, self.tolerances(), given.alpha)
        kept = [one for one in every if one.level in self.levels or one.figure == ANSWERS]
        off = sorted({one.figure or "" for one in every if one not in kept})
        self._left = [*left_of(self.rows), *(f"{figure} (--gate-level)" for figure in off), *self._uncertified()]
        if 0 in self.levels:
            kept += [output_finding(one.endpoint, one.state, one.lines[0]) for one in bench.certificates or ()]
        if not lacking and not any(one.figure for one in kept):
            kept.append(Finding(SUITE, 0, GateVerdict.ERROR, UNJUDGED))
        return [*kept, *lacking]

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
        """Nothing is saved yet."""
        if self.rules.save:
            raise GateError("--gate-save writes rows of the main job; a run that is held against an endpoint has none")


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
