"""Servers held against their base: what is planted in one is REGRESSED, in its place, and nothing else is."""

from __future__ import annotations

import pytest

from benchsuite.benches.serving.bench import ServingBench, ServingPlan
from benchsuite.benches.serving.figures import Slo
from benchsuite.benches.serving.load import Traffic
from benchsuite.gate.record import DECODE, FIRST, STEPS, WHOLE
from benchsuite.gate.served import (
    ANSWERS,
    LOST,
    OUTPUTS,
    SPECULATION,
    ServedTolerances,
    output_finding,
    served_findings,
)
from benchsuite.gate.verdict import Finding, GateVerdict
from benchsuite.run.served_rows import left_of, served_rows
from benchsuite.tests import drafting_servers as servers
from benchsuite.tests.drafting_servers import DraftingServer
from benchsuite.tests.made_up_servers import MadeUpServers
from benchsuite.tests.rig import slow_after
from specdec_plugins.endpoints.client import Ask
from specdec_plugins.endpoints.named import Endpoint

ONE, FOUR = Traffic(concurrency=1), Traffic(concurrency=4)
ALPHA = 0.01


def beside_a_drafting_base(
    head: DraftingServer, prompts: int = 96, length: int = 20, certified: bool = False
) -> ServingBench:
    """A run of two loads over a server that drafts, as the base, and another one."""
    texts = tuple(("chat" if n % 2 else "code", f"w{n} question {n} of w{n % 7}") for n in range(prompts))
    endpoints = Endpoint("base", "http://base"), Endpoint("head", "http://head")
    plan = ServingPlan(endpoints, texts, Ask("", length), slo=Slo(e2e=2.0), loads=(ONE, FOUR), gated=True)
    bench = ServingBench(plan, servers=MadeUpServers({"base": DraftingServer(1), "head": head}))
    for load in plan.loads:
        bench.measure(load)
    if certified:
        bench.certify("unknown")
    return bench


def findings_of_servers(bench: ServingBench) -> list[Finding]:
    workloads = [label for label, _ in bench.plan.prompts]
    rows = [
        row
        for load, blocks in bench.blocks.items()
        for row in served_rows(blocks, "base", ["head"], load, workloads, bench.plan.slo, ALPHA)
    ]
    outputs = [output_finding(one.endpoint, one.state, one.lines[0]) for one in bench.certificates or ()]
    return [*served_findings(rows, ServedTolerances(), ALPHA), *outputs]


def places_of_the_worse(found: list[Finding]) -> dict[tuple[str, str | None], str]:
    """The places of what got worse, by row and figure."""
    return {
        (one.row, one.figure): (one.where or "").partition(" ")[0]
        for one in found
        if one.verdict == GateVerdict.REGRESSED
    }


def test_a_server_beside_itself_passes_in_every_figure() -> None:
    found = findings_of_servers(beside_a_drafting_base(DraftingServer(2)))
    assert {(one.row, one.figure) for one in found} == {
        (row, figure) for row in ("head-c1", "head-c4") for figure in (STEPS, DECODE, FIRST, WHOLE, LOST)
    }
    assert {one.verdict for one in found} == {GateVerdict.PASS}
    assert {one.change for one in found if one.figure == STEPS} == {0.0}, "the same prompts accept the same"


BOTH = ("head-c1", "head-c4")
PLANTED = {
    "SlowForwards": {(row, figure): "engine" for row in BOTH for figure in (DECODE, WHOLE)},
    "AcceptsLess": {(row, STEPS): "acceptance" for row in BOTH},
    "SlowPrefill": {(row, FIRST): "prefill" for row in BOTH},
    "NeverDrafts": {(row, SPECULATION): "speculation" for row in BOTH},
    "GivesUp": {(row, ANSWERS): "answers" for row in BOTH},
}


@pytest.mark.parametrize("name", slow_after(2, PLANTED))
def test_what_is_planted_is_found_in_its_place(name: str) -> None:
    found = places_of_the_worse(findings_of_servers(beside_a_drafting_base(getattr(servers, name)(2))))
    assert {case: place for case, place in found.items() if case in PLANTED[name]} == PLANTED[name]
    others = {place for case, place in found.items() if case not in PLANTED[name]}
    assert others <= {*PLANTED[name].values()}, "what follows from it is in the same place"


@pytest.mark.slow
def test_a_draft_that_ends_under_a_load_is_found_though_most_of_its_answers_were_drafted() -> None:
    found = findings_of_servers(beside_a_drafting_base(servers.StopsDrafting(2)))
    silent = {one.row: one.message for one in found if one.figure == SPECULATION}
    assert silent["head-c1"].startswith("it proposed nothing any more after 39 of the counts in which the base does")
    assert silent["head-c4"].endswith("and this server reports no speculation in its answers or on its page")
    assert places_of_the_worse(found)["head-c1", SPECULATION] == "speculation"


@pytest.mark.slow
def test_outputs_that_are_others_late_are_regressed_and_an_honest_servers_pass() -> None:
    late = findings_of_servers(
        beside_a_drafting_base(servers.DraftsOtherwiseLate(2), prompts=24, length=40, certified=True)
    )
    assert places_of_the_worse(late)["head-outputs", OUTPUTS] == "output"
    honest = findings_of_servers(beside_a_drafting_base(DraftingServer(2), prompts=24, length=40, certified=True))
    [outputs] = [one for one in honest if one.figure == OUTPUTS]
    assert outputs.verdict == GateVerdict.PASS, outputs.message


@pytest.mark.slow
def test_what_a_base_does_not_count_is_named_as_not_judged() -> None:
    bench = beside_a_drafting_base(DraftingServer(2))
    rows = served_rows(bench.blocks[ONE], "head", ["base"], ONE, [""] * 96, None, ALPHA)
    assert left_of(rows) == []
    plain = beside_a_drafting_base(servers.NeverDrafts(2))
    rows = served_rows(plain.blocks[ONE], "head", ["base"], ONE, [""] * 96, None, ALPHA)
    assert left_of(rows) == [
        f"base-c1 {STEPS} (the base counts no accepted tokens, in its answers or on its page)",
    ]
