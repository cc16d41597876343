"""Gatings that are drawn from a recorded run of two servers: nothing is REGRESSED, and what is put into one is."""

from __future__ import annotations

import gzip
import json
import random
import sys
from dataclasses import replace
from math import log
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from benchsuite.benches.serving.bench import ServingBench, ServingPlan
from benchsuite.benches.serving.forward_counts import forward_counts
from benchsuite.benches.serving.load import Traffic
from benchsuite.benches.serving.timed_answers import tpot_of
from benchsuite.report.document import Table
from benchsuite.tests.drafting_servers import DraftingServer
from benchsuite.tests.made_up_servers import MadeUpServers
from benchsuite.workshop.gate.served import (
    LOSS,
    SLOWER,
    drawn_rates,
    less_accepted,
    nothing_planted,
    read_runs,
    reduced_run,
    served_rates_main,
    slower_tokens,
)
from specdec_plugins.endpoints.client import Ask
from specdec_plugins.endpoints.named import Endpoint

pytestmark = pytest.mark.slow

LOADS = Traffic(concurrency=1), Traffic(concurrency=2)


@pytest.fixture(scope="module")
def served_content() -> dict[str, Any]:
    """Three rounds of two loads over two servers that draft alike, as a run of pytest writes them."""
    texts = tuple(("chat" if n % 2 else "code", f"w{n} question {n} of w{n % 7}") for n in range(96))
    endpoints = Endpoint("one", "http://one"), Endpoint("two", "http://two")
    plan = ServingPlan(endpoints, texts, Ask("", 16), rounds=3, loads=LOADS, gated=True)
    servers = {"one": DraftingServer(1), "two": DraftingServer(2)}
    bench = ServingBench(plan, servers=MadeUpServers(servers))
    for load in LOADS:
        bench.measure(load)
    found: dict[str, Any] = json.loads(json.dumps(bench.as_json()))
    return found


def test_what_is_kept_of_a_run_counts_and_lasts_as_the_whole_of_it(served_content: dict[str, Any]) -> None:
    short = json.loads(json.dumps(reduced_run(served_content, {"commit": "c"})))
    assert short["made"] == {"commit": "c"}
    for whole, run in zip(read_runs(served_content), read_runs(short), strict=True):
        assert (run.load, run.workloads, run.names) == (whole.load, whole.workloads, ["one", "two"])
        assert forward_counts(run.blocks).counts == forward_counts(whole.blocks).counts
        replies = [[one.reply for block in some.blocks for one in block.sent if one.reply] for some in (whole, run)]
        for before, after in zip(*replies, strict=True):
            assert after.seconds == before.seconds
            assert tpot_of(after) == pytest.approx(tpot_of(before), rel=1e-4)


def test_nothing_is_found_of_nothing_and_losses_are(
    served_content: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "serving.json").write_text(json.dumps(served_content))
    (tmp_path / "MANIFEST.json").write_text("{}")
    file = tmp_path / "kept.json.gz"
    monkeypatch.setattr(sys, "argv", ["served", "keep", str(tmp_path / "serving.json"), str(file)])
    served_rates_main()
    runs = read_runs(json.loads(gzip.decompress(file.read_bytes())))
    table = drawn_rates(runs[:1], 5, 80)
    assert isinstance(table, Table)
    cells = [[cell.text for cell in line] for line in table.cells]
    assert [line[:3] for line in cells] == [
        ["nothing", "15", "0"],
        ["5% of the acceptance length", "5", "5"],
        ["10% of the tokens a second", "5", "5"],
    ]
    assert [line[3] for line in cells] == ["-", "5 (steps/token)", "5 (s/token)"]
    assert [line[4] for line in cells] == ["0", "0", "0"]
    monkeypatch.setattr(sys, "argv", ["served", "draw", str(file), "--draws=1", "--prompts=12"])
    served_rates_main()
    assert capsys.readouterr().out.splitlines()[2].replace(" ", "").startswith("|nothing|3|0|")


def test_what_is_planted_is_as_large_as_it_is_said_to_be(served_content: dict[str, Any]) -> None:
    run = read_runs(reduced_run(served_content, {}))[0]
    mine = [block for block in run.blocks if block.endpoint == "one"]
    dice = random.Random(0)
    assert nothing_planted(mine, dice) == mine
    whole, less = forward_counts(mine), forward_counts(less_accepted(mine, dice))
    logs = [log(after.length / before.length) for before, after in zip(whole.counts, less.counts, strict=True)]
    assert fmean(logs) == pytest.approx(log(1 - LOSS), abs=0.015)
    slow = slower_tokens(mine, dice)
    for before, after in zip(mine, slow, strict=True):
        for one, other in zip(before.sent, after.sent, strict=True):
            assert one.reply
            assert other.reply
            assert (tpot_of(one.reply) or 0) / (tpot_of(other.reply) or 1) == pytest.approx(1 - SLOWER)
    none = [
        replace(block, counts=tuple(replace(one, said=replace(one.said, accepted=0)) for one in block.counts))
        for block in mine
    ]
    with pytest.raises(ValueError, match="too few tokens are accepted for a loss of 5%"):
        less_accepted(none, dice)
