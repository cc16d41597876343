"""Servers held against a file: it is read as it was written, and what it cannot say is not said."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchsuite.benches.serving.bench import ServingBench, ServingPlan
from benchsuite.benches.serving.load import Traffic
from benchsuite.gate.record import DECODE, FIRST, STEPS, WHOLE, GateError
from benchsuite.gate.served import ANSWERS, SPECULATION, ServedTolerances, served_findings
from benchsuite.gate.verdict import Finding, GateVerdict
from benchsuite.run.served_baseline import ServedBaseline, is_of_servers
from benchsuite.run.served_rows import stored_rows
from benchsuite.tests import drafting_servers as servers
from benchsuite.tests.drafting_servers import DraftingServer
from benchsuite.tests.made_up_servers import MadeUpServers
from specdec_plugins.endpoints.client import Ask
from specdec_plugins.endpoints.named import Endpoint

LOAD = Traffic(concurrency=1)
TEXTS = tuple(("chat" if n % 2 else "code", f"w{n} question {n} of w{n % 7}") for n in range(48))
WORKLOADS = [label for label, _ in TEXTS]


def kept_of(head: DraftingServer, host: str = "127.0.0.1") -> ServedBaseline:
    """What a file has of a plain server and of one that drafts."""
    endpoints = Endpoint("plain", f"http://{host}:1"), Endpoint("spec", f"http://{host}:2")
    plan = ServingPlan(endpoints, TEXTS, Ask("", 16), loads=(LOAD,), gated=True)
    bench = ServingBench(plan, servers=MadeUpServers({"plain": servers.NeverDrafts(1), "spec": head}))
    bench.measure(LOAD)
    return ServedBaseline.of(bench, {"machine": "m"})


def against(before: ServedBaseline, now: ServedBaseline, timed: bool = True) -> dict[str | None, Finding]:
    rows = stored_rows(now, before, ["spec-c1"], WORKLOADS, timed, 0.01)
    found = served_findings(rows, replace(ServedTolerances(), coarse=0.15), 0.01, 1, "plain")
    return {one.figure: one for one in found}


@pytest.fixture(scope="module")
def served_file(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ServedBaseline]:
    """A file of a run, and what was written to it."""
    file, made = tmp_path_factory.mktemp("served") / "gate.json", kept_of(DraftingServer(2))
    made.save(file)
    return file, made


def test_a_file_is_read_as_it_was_written_and_any_other_is_refused(
    served_file: tuple[Path, ServedBaseline], tmp_path: Path
) -> None:
    file, made = served_file
    assert ServedBaseline.load(file) == made
    assert is_of_servers(file)
    assert made.rows.keys() == {"plain-c1", "spec-c1"}
    assert (made.rows["plain-c1"].over, made.rows["plain-c1"].times) == (None, {})
    assert (made.local, kept_of(DraftingServer(2), "elsewhere").local) == (True, False)
    other = tmp_path / "other.json"
    content: dict[str, Any] = json.loads(file.read_text())
    for changed, said in (
        ({"version": 9}, "has the version 9, expected 1; make it again"),
        ({"rows": {"a": {}}}, "is corrupt: KeyError"),
        ({"rows": []}, "is corrupt: AttributeError"),
    ):
        other.write_text(json.dumps({**content, **changed}))
        with pytest.raises(GateError, match=said):
            ServedBaseline.load(other)
    for text in ("{", "[]", '{"format": "specdec-gate"}'):
        other.write_text(text)
        assert not is_of_servers(other)
    assert not is_of_servers(None)
    assert not is_of_servers(tmp_path / "none.json")


def test_the_same_server_passes_against_its_file_in_counts_and_times(served_file: tuple[Path, ServedBaseline]) -> None:
    before = ServedBaseline.load(served_file[0])
    found = against(before, kept_of(DraftingServer(3)))
    assert {figure: one.level for figure, one in found.items()} == {STEPS: 0, DECODE: 1, FIRST: 1, WHOLE: 1}
    assert {one.verdict for one in found.values()} == {GateVerdict.PASS}
    assert found[STEPS].change == 0
    assert ", over plain's (" in found[DECODE].message
    assert against(before, kept_of(DraftingServer(3)), timed=False).keys() == {STEPS}


@pytest.mark.slow
def test_a_loss_is_found_against_a_file(served_file: tuple[Path, ServedBaseline]) -> None:
    before = served_file[1]
    less = against(before, kept_of(servers.AcceptsLess(3)))
    assert (less[STEPS].verdict, less[STEPS].where) == (GateVerdict.REGRESSED, "acceptance")
    slower = type("Slower", (DraftingServer,), {"forward_s": 1.3 * DraftingServer.forward_s})(3)
    slow = against(before, kept_of(slower))
    assert (slow[DECODE].verdict, slow[STEPS].verdict) == (GateVerdict.REGRESSED, GateVerdict.PASS)
    tenth = against(before, kept_of(servers.SlowForwards(3)))
    assert tenth[DECODE].verdict == GateVerdict.PASS, "one run each has the noise of a launch: 15 % are let through"
    none = against(before, kept_of(servers.NeverDrafts(3)))
    assert (none[SPECULATION].verdict, none[SPECULATION].where) == (GateVerdict.REGRESSED, "speculation")
    poor = against(before, kept_of(servers.GivesUp(3)))
    assert poor[ANSWERS].verdict == GateVerdict.REGRESSED
