"""The benchmark of decoding: ratios of planted effects on clocks that tick with what the engine does."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchsuite.benches.decoding import batches
from benchsuite.benches.decoding.batches import batches_family, different_requests
from benchsuite.benches.decoding.bench import FAMILIES, DecodingBench
from benchsuite.benches.decoding.conversations import ANSWER, FIRST, QUESTION
from benchsuite.benches.decoding.mixes import equal_jobs, every_processor, ragged_jobs
from benchsuite.benches.decoding.queues import queues_family
from benchsuite.benches.decoding.ratios import Contrast, Family, Ratio, Sample, alternated
from benchsuite.benches.decoding.steps import K, eight, stepped
from benchsuite.report import decoding
from benchsuite.report.renderers import terminal
from specdec import Engine, SamplingParams, SpecdecError, catalog
from specdec.model import ArenaModel
from specdec_kernels.reference import Reference

TEXT = tuple(range(40, 250))


@pytest.fixture
def bench() -> DecodingBench:
    loaded = catalog.load("tiny", torch.device("cpu"), torch.float32)
    return DecodingBench("tiny", loaded, ArenaModel(loaded.model, Reference()), rounds=6)


def planted(factor: float, work: int = 10) -> Family:
    """Two arms, the second slower by a factor, on a machine whose speed drifts from run to run."""
    drift = count(1)

    def run(slower: float, tokens: int) -> Sample:
        return Sample({"seconds": slower * (1 + next(drift) % 3 * 1e-3)}, (4, tokens))

    arms = {"base": lambda: run(1.0, 10), "slow": lambda: run(factor, work)}
    return Family(arms, [Contrast("slow", "base", "seconds", "s")], ["what it is"])


def test_a_planted_factor_is_found_with_an_interval_around_it() -> None:
    row = next(alternated(planted(2.0), rounds=6))
    found = row.estimate
    assert found.low is not None
    assert found.high is not None
    assert found.low < 2 < found.high
    assert found.ratio == pytest.approx(2, rel=2e-3)
    assert len(row.each) == 6
    assert row.work == (4, 10)


def test_below_six_rounds_a_row_has_pairs_and_no_interval() -> None:
    row = next(alternated(planted(2.0), rounds=3))
    assert row.estimate.low is None
    assert "-" in decoding.ratios_table([row]).rows[0]


def test_arms_that_ran_other_tokens_make_no_row() -> None:
    with pytest.raises(SpecdecError, match=r"slow over base: the runs have \[\(4, 10\), \(4, 11\)\] prompt and output"):
        list(alternated(planted(2.0, work=11), rounds=2))


def test_arms_alternate_in_every_round_after_one_run_each_to_warm_up() -> None:
    ran: list[str] = []

    def arm(name: str) -> Sample:
        ran.append(name)
        return Sample({"s": 1.0}, (1, 1))

    arms = {name: (lambda name=name: arm(name)) for name in "abc"}
    list(alternated(Family(arms, [Contrast("a", "b", "s", "s")], []), rounds=5))
    rounds = [ran[i : i + 3] for i in range(0, len(ran), 3)]
    assert len(rounds) == 6
    assert all(sorted(names) == ["a", "b", "c"] for names in rounds)
    assert len({tuple(names) for names in rounds}) > 1, "always in one order"


def test_ragged_and_equal_requests_have_equal_tokens_in_all() -> None:
    ragged, equal = ragged_jobs(TEXT), equal_jobs(TEXT)
    assert ragged == ragged_jobs(TEXT), "another run measures another work"
    totals = {
        (len(jobs), sum(len(job.prompt) for job in jobs), sum(job.params.max_new_tokens for job in jobs))
        for jobs in (ragged, equal)
    }
    assert len(totals) == 1
    assert len({(len(job.prompt), replace(job.params, seed=0)) for job in equal}) == 1
    for name in ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"):
        assert len({getattr(job.params, name) for job in ragged}) > 2, name
    assert len({len(job.prompt) for job in ragged}) > 20
    assert len({job.params.max_new_tokens for job in ragged}) == 9


def test_no_processor_keeps_a_request_from_its_whole_budget(bench: DecodingBench) -> None:
    params = every_processor(258, (256,), 12)
    off = SamplingParams(max_new_tokens=12)
    named = {name for name in vars(params) if getattr(params, name) != getattr(off, name)}
    assert named == {
        *("temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
        *("logit_bias", "bad_words", "min_new_tokens", "eos"),
    }
    done = bench.assembly.engine(None).run(eight(bench.text, params))
    assert [len(one.tokens) for one in done] == [12] * 8


class SaidTime:
    """Seconds that pass only when something says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("specdec.devices.time", SimpleNamespace(perf_counter=self))
        monkeypatch.setattr("benchsuite.machine.clock.perf_counter", self)

    def __call__(self) -> float:
        return self.now

    def tick_with(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, seconds: Any) -> None:
        """Let ``seconds`` pass in each call of a method; a function of its arguments, or a number."""
        real = getattr(owner, name)

        def timed(*arguments: Any, **named: Any) -> Any:
            self.now += seconds(*arguments) if callable(seconds) else seconds
            return real(*arguments, **named)

        monkeypatch.setattr(owner, name, timed)


@pytest.mark.slow
def test_the_share_of_a_step_is_what_passes_outside_the_forwards(
    bench: DecodingBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = bench.assembly.engine("oracle(0.8)", k=K)
    work = eight(bench.text, SamplingParams(max_new_tokens=24))
    stepped(engine, work)
    clock = SaidTime(monkeypatch)
    assert engine.draft is not None
    clock.tick_with(monkeypatch, bench.target, "forward", 6.0)
    clock.tick_with(monkeypatch, engine.draft, "propose", 1.0)
    clock.tick_with(monkeypatch, engine.policy, "accept", 2.0)
    clock.tick_with(monkeypatch, engine, "read", 1.0)
    sample = stepped(engine, work)
    assert sample.figures == {"rest_share": pytest.approx(0.3), "step_ms": pytest.approx(10_000)}
    assert sample.work == (8 * 32, 8 * 24)


def test_a_run_without_a_full_step_is_refused(bench: DecodingBench) -> None:
    engine: Engine = bench.assembly.engine("oracle(0.8)", k=K)
    with pytest.raises(SpecdecError, match="no step had 8 rows with 4 proposals each; give the outputs more tokens"):
        stepped(engine, eight(bench.text, SamplingParams(max_new_tokens=4)))


@pytest.mark.slow
def test_queues_see_the_cells_that_grouping_saves(bench: DecodingBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a forward costs what its longest row has, grouping must pay, and a second run is the first."""
    clock = SaidTime(monkeypatch)
    clock.tick_with(monkeypatch, bench.target, "forward", lambda arena, window, live, longest: float(longest))
    rows = {row.contrast.arm: row for row in alternated(queues_family(bench.assembly, bench.text, 40), rounds=1)}
    assert rows["ragged, grouped"].each[0] > 1.05
    assert rows["ragged again"].each == [1.0]
    assert rows["ragged"].each[0] < 1
    assert {row.work for row in rows.values()} == {(40 * 16, 40 * 6)}


@pytest.mark.slow
def test_a_batch_is_as_many_times_as_fast_as_it_has_rows_where_a_forward_costs_what_one_row_costs(
    bench: DecodingBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = 20
    monkeypatch.setattr(batches, "BUDGET", budget)
    clock = SaidTime(monkeypatch)
    clock.tick_with(monkeypatch, bench.target, "forward", 1.0)
    rows = {row.contrast.arm: row for row in alternated(batches_family(bench.assembly, bench.text), rounds=1)}
    assert rows["one batch"].each == [8.0]
    assert rows["one by one again"].each == [1.0]
    assert 2 < rows["one by one, drafts"].each[0] < 5, "an oracle of 0.8 with four proposals"
    assert 1 < rows["one batch, drafts"].each[0] < rows["one by one, drafts"].each[0], "a batch waits for its last row"
    assert {row.work[1] for row in rows.values()} == {8 * budget}


def test_the_requests_of_a_batch_differ_in_text_and_length() -> None:
    requests = different_requests(TEXT)
    assert len({request.prompt for request in requests}) == len(requests) == 8
    assert len({len(request.prompt) for request in requests}) > 4


def test_the_table_and_the_files_have_every_row(bench: DecodingBench, tmp_path: Path) -> None:
    row = Contrast("all processors", "greedy", "rest_share", "% of a step")
    bench.ratios = [Ratio(row, (0.125,) * 6, (0.1, 0.1, 0.1, 0.1, 0.1, 0.11), (6400, 1600))]
    bench.legend = list(FAMILIES["queues"](bench).legend)
    lines = terminal(decoding.decoding_document(bench, ["machine"]))
    [line] = [line for line in lines if line.startswith("all processors")]
    assert "all processors  greedy  % of a step  12.5    10.0    1.23" in line
    assert "6,400 + 1,600" in line
    assert max(map(len, lines)) <= 120
    folder = decoding.write_decoding(tmp_path, bench, ["machine"], complete=True)
    written = json.loads((folder / "decoding.json").read_text())
    assert written["rows"][0]["pairs"][0] == [0.125, 0.1]
    assert written["rows"][0]["output_tokens"] == 1600
    assert "| all processors | greedy |" in (folder / "decoding.md").read_text()


@pytest.mark.slow
def test_a_kept_first_turn_leaves_the_second_question_to_read(bench: DecodingBench) -> None:
    """The clock counts the tokens that the target reads, so that the ratio is exact."""
    family = FAMILIES["turns"](bench)
    read: list[int] = []
    forwards = (ArenaModel.extend, ArenaModel.forward)
    with pytest.MonkeyPatch.context() as patch:

        def extend(target: ArenaModel, arena: Any, tokens: torch.Tensor, *rest: Any) -> torch.Tensor:
            read.append(tokens.shape[1])
            return forwards[0](target, arena, tokens, *rest)

        patch.setattr(ArenaModel, "extend", extend)
        family.arms["second turn, anew"]()
        whole = sum(read[-4:])
        read.clear()
        family.arms["second turn, kept"]()
        conversation = FIRST + ANSWER + QUESTION
        assert whole == conversation - 1
        assert sum(read) == FIRST - 1 + QUESTION, "the first turn, and of the second what is new with its last token"
