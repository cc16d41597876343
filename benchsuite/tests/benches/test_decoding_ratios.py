"""The benchmark of decoding: ratios of planted effects on clocks that tick with what the engine does."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchsuite.benches.decoding import batches, steps
from benchsuite.benches.decoding.batches import batches_family, different_requests, emitted
from benchsuite.benches.decoding.bench import FAMILIES, LONGEST_ROW, ROUNDS, DecodingBench
from benchsuite.benches.decoding.conversations import ANSWER, FIRST, QUESTION, conversations_family
from benchsuite.benches.decoding.mixes import cut, equal_jobs, every_processor, ragged_jobs, spread
from benchsuite.benches.decoding.queues import queued, queues_family
from benchsuite.benches.decoding.ratios import Contrast, Family, Ratio, Sample, alternated
from benchsuite.benches.decoding.steps import BUDGET, DRAFT, K, eight, params_of_arms, stepped, steps_family
from benchsuite.conformance.models import families
from benchsuite.report import decoding
from benchsuite.report.renderers import terminal
from specdec import Registry, Request, SamplingParams, SpecdecError, catalog
from specdec.assembly import Assembly
from specdec.jobs import Job
from specdec.messages import Window
from specdec.model import ArenaModel
from specdec_kernels.reference import Reference

ROOT = Path(__file__).parents[3]
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


def test_what_warms_a_family_up_runs_once_in_the_place_of_its_arms() -> None:
    ran: list[str] = []

    def run(name: str) -> Sample:
        ran.append(name)
        return Sample({"s": 1.0}, (1, 1))

    arms = {"a": lambda: run("a"), "b": lambda: run("b")}
    rows = list(alternated(Family(arms, [Contrast("a", "b", "s", "s")], [], lambda: ran.append("warm")), rounds=2))
    assert (ran[0], ran.count("warm"), ran.count("a"), ran.count("b")) == ("warm", 1, 2, 2)
    assert [row.each for row in rows] == [[1.0, 1.0]]


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


def test_ragged_requests_are_on_average_what_equal_requests_are() -> None:
    """In every parameter within a tenth; each has values for which its processor is off, and others."""
    ragged, [equal, *_] = ragged_jobs(TEXT), equal_jobs(TEXT)
    off = SamplingParams()
    for name in ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"):
        values = [getattr(job.params, name) for job in ragged]
        assert sum(values) / len(values) == pytest.approx(getattr(equal.params, name), abs=0.1), name
        assert 0 < sum(value == getattr(off, name) for value in values) < len(values) / 2, name


def test_requests_of_a_queue_have_their_own_seeds_and_texts_and_no_end_tokens() -> None:
    """Each has its own place of a long text, so that prefixes are not shared; ends of the target's change nothing."""
    text = range(10_000)
    for jobs in (ragged_jobs(text), equal_jobs(text)):
        assert len({job.params.seed for job in jobs}) == len(jobs) == 200
        read = [token for job in jobs for token in job.prompt]
        assert len(set(read)) == len(read)
        assert all(job.request((1,), eos=(2,)).params.eos == () for job in jobs)
        assert [job.index for job in jobs] == [job.id for job in jobs] == list(range(200))
    lengths = [len(job.prompt) for job in ragged_jobs(text)]
    mirrored = [a + b for a, b in zip(lengths[:100], lengths[100:], strict=True)]
    assert len(set(mirrored)) > 10, "how long a request is cannot be told from its place"


@pytest.mark.parametrize(("low", "high"), [(0, 9), (3, 3), (8, 57)])
def test_so_many_lengths_lie_between_two_ends_and_their_mean_in_the_middle(low: int, high: int) -> None:
    for number in range(0, 40, 2):
        found = spread(number, (low, high), Random(number))
        assert len(found) == number
        assert all(low <= one <= high for one in found)
        assert 2 * sum(found) == number * (low + high)


@pytest.mark.parametrize("text", [(7,), (1, 2, 3), TEXT[:10]])
def test_a_text_that_ends_begins_again(text: tuple[int, ...]) -> None:
    for start in range(25):
        for length in range(25):
            assert cut(text, start, length) == tuple(text[(start + n) % len(text)] for n in range(length))


def test_all_processors_are_mild_and_of_different_words() -> None:
    """No stronger than those of ragged requests; one word is likelier and one as much less likely; of the forbidden
    ones, of one to three tokens, the longest begins with the second, and the first is in neither."""
    params, ragged = every_processor(258, (256, 130), 12), [job.params for job in ragged_jobs(TEXT)]
    assert params.temperature == 1
    assert 0 < params.top_k < 258
    for name in ("top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"):
        values = {getattr(one, name) for one in ragged}
        assert min(values) < getattr(params, name) < max(values), name
    (one, more), (other, less) = params.bias
    assert more == -less > 0
    single, pair, triple = params.bad_words
    assert triple[:2] == pair
    words = {one, other, *single, *triple}
    assert len(words) == 6
    assert not words & {256, 130}, "the ends are put off already"
    assert params.eos == (256, 130)
    assert every_processor(258, (), 12).eos == (0,)
    assert (params.max_new_tokens, params.min_new_tokens) == (12, 12)


def test_a_page_says_how_large_the_work_is() -> None:
    """docs/decoding.md, and the legends."""
    page = " ".join((ROOT / "docs" / "decoding.md").read_text(encoding="utf-8").split())
    rows = len(eight(TEXT, SamplingParams()))
    batch = different_requests(TEXT)
    lengths = [len(one.prompt) for one in batch]
    [budget] = {one.params.max_new_tokens for one in batch}
    greedy = params_of_arms(258, ())["greedy"]
    [each] = {len(one.prompt) for one in eight(TEXT, greedy)} | {greedy.max_new_tokens}
    assert f"in which {rows} rows propose {K} tokens each (`{DRAFT}`; prompts and outputs of {each} tokens)" in page
    assert f"{len(ragged_jobs(TEXT))} requests through {rows} rows" in page
    assert "eight different prompts of 8 to 56 tokens, 64 tokens of output each" in page
    assert (len(batch), budget) == (8, 64)
    assert 8 <= min(lengths) < max(lengths) <= 56
    assert sum(lengths) == 8 * (8 + 56) / 2
    assert f"in a conversation of {FIRST + ANSWER + QUESTION:,} tokens" in page
    assert f"`--specdec-pairs` rounds ({ROUNDS}, the fewest that have an interval)" in page


def test_every_row_of_a_family_is_of_its_arms_and_of_a_figure_that_its_unit_is_of() -> None:
    assembly = small_assembly(128)
    made = {
        "steps": steps_family(assembly, TEXT, (256,)),
        "batches": batches_family(assembly, TEXT),
        "queues": queues_family(assembly, TEXT, 4),
        "turns": conversations_family(assembly, TEXT),
    }
    assert list(made) == list(FAMILIES)
    for name, family in made.items():
        assert {row.arm for row in family.rows} | {row.over for row in family.rows} == set(family.arms)
        assert len({(row.arm, row.over, row.figure) for row in family.rows}) == len(family.rows)
        assert family.legend[0].startswith(f"{name}: ")
        for row in family.rows:
            assert row.unit.startswith("%") == row.figure.endswith("_share"), "a share is kept as a fraction"
            assert "_per_" not in row.figure or row.unit == row.figure.replace("_per_", "/")
            assert row.unit.startswith("ms ") == row.figure.endswith("_ms")


def test_the_arms_of_steps_run_eight_rows_of_four_proposals_over_an_assembly_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or no step would be full."""
    monkeypatch.setattr(steps, "BUDGET", 5)
    clock, assembly = SaidTime(monkeypatch), small_assembly(128)
    clock.tick_with(monkeypatch, assembly.target, "forward", 1.0)
    family = steps_family(assembly, TEXT, (256,))
    sample = family.arms["greedy"]()
    assert sample.work == (8 * 32, 8 * 5)
    assert set(sample.figures) == {row.figure for row in family.rows}


def test_arms_of_a_batch_run_eight_rows_at_once_and_the_others_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever rows the assembly has. A forward that none of a batch has is of an oracle's own run."""
    monkeypatch.setattr(batches, "BUDGET", 2)
    clock, assembly = SaidTime(monkeypatch), small_assembly(128, max_rows=3)
    rows: set[int] = set()

    def forward(arena: Any, window: Window, *rest: Any) -> float:
        rows.add(len(window.width))
        return 1.0

    clock.tick_with(monkeypatch, assembly.target, "forward", forward)
    for name, arm in batches_family(assembly, TEXT).arms.items():
        rows.clear()
        assert arm().work[1] == 8 * 2
        assert max(rows) == (8 if "batch" in name else 1), name


def test_a_queue_runs_eight_rows_over_an_assembly_of_one_in_the_order_that_its_arm_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A forward takes a second however many rows it has: eight outputs of six tokens take six, and one by one 48."""
    clock, assembly = SaidTime(monkeypatch), small_assembly(128)
    read: list[int] = []

    def reading(arena: Any, tokens: torch.Tensor, *rest: Any) -> float:
        read.append(tokens.shape[1] + 1)  # the last token of a prompt is the first step's
        return 0.0

    clock.tick_with(monkeypatch, assembly.target, "forward", 1.0)
    clock.tick_with(monkeypatch, assembly.target, "extend", reading)
    queue = queues_family(assembly, TEXT, 8).arms["equal"]()
    assert queue.work == (8 * 16, 8 * 6)
    assert 8 * 6 / queue.figures["tokens_per_s"] <= 6 + 8
    family, jobs = queues_family(assembly, TEXT, 10), ragged_jobs(TEXT, 10)
    longest_first = sorted(jobs, key=lambda job: len(job.prompt) + job.params.max_new_tokens, reverse=True)
    for arm, expected in (("ragged", jobs), ("ragged, grouped", longest_first)):
        read.clear()
        family.arms[arm]()
        assert read == [len(job.prompt) for job in expected], arm


@pytest.mark.slow
def test_another_seed_of_the_benchmark_draws_other_proposals() -> None:
    found = []
    for seed in (0, 1):
        loaded = catalog.load("tiny", torch.device("cpu"), torch.float32)
        bench = DecodingBench("tiny", loaded, ArenaModel(loaded.model, Reference()), seed=seed)
        engine = bench.assembly.engine("oracle(0.5)", k=K, max_rows=1)
        engine.run(eight(bench.text, SamplingParams(max_new_tokens=24))[:1])
        found.append([step.accepted for step in engine.stats.steps])
        assert bench.rounds == ROUNDS
    assert found[0] != found[1]


def test_the_arms_of_steps_ask_for_what_they_are_called_and_for_as_many_tokens() -> None:
    arms = params_of_arms(258, (256,))
    greedy = SamplingParams(max_new_tokens=BUDGET)
    assert arms["greedy"] == arms["greedy again"] == greedy
    assert arms["temperature 1"] == replace(greedy, temperature=1.0)
    assert arms["logprobs=5"] == replace(greedy, logprobs=5)
    assert arms["all processors"] == every_processor(258, (256,), BUDGET)


@pytest.mark.parametrize("rows", [1, 3])
def test_a_speed_is_that_of_output_tokens_and_the_work_is_all_that_was_read_and_written(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forward takes two seconds. A queue that ran before is forgotten: it may be run again."""
    clock, assembly = SaidTime(monkeypatch), small_assembly(128)
    clock.tick_with(monkeypatch, assembly.target, "forward", 2.0)
    engine = assembly.engine(None, max_rows=rows)
    requests = [Request(n, TEXT[: 3 + n], SamplingParams(max_new_tokens=2 + n)) for n in range(3)]
    jobs = [Job(n, n, TEXT[: 3 + n], SamplingParams(max_new_tokens=2 + n), ends=True) for n in range(3)]
    for run in ("requests", "queue", "queue"):
        before = clock.now
        sample = emitted(engine, requests) if run == "requests" else queued(engine, assembly.tokenizer, jobs)
        assert sample.work == (3 + 4 + 5, 2 + 3 + 4)
        assert sample.figures == {"tokens_per_s": (2 + 3 + 4) / (clock.now - before)}


def small_assembly(limit: int, max_rows: int = 1) -> Assembly:
    """Over a target with so many positions."""
    model = families.build_model("llama")
    model.config.max_position_embeddings = limit
    target = ArenaModel(model, Reference())
    return Assembly(Registry(), target, catalog.byte_tokenizer(), max_rows=max_rows, max_length=limit)


@pytest.mark.parametrize(("limit", "first"), [(37, 1), pytest.param(64, 28, marks=pytest.mark.slow)])
def test_a_conversation_fits_a_target_with_few_positions(
    limit: int, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token that is read takes a second: of a turn that is kept those of the question and the last before them."""
    clock, assembly = SaidTime(monkeypatch), small_assembly(limit)
    read: list[int] = []

    def reading(arena: Any, tokens: torch.Tensor, *rest: Any) -> float:
        assert len(arena.committed) == 1, "one row"
        read.extend(tokens[0].tolist())
        return float(tokens.shape[1])

    clock.tick_with(monkeypatch, assembly.target, "extend", reading)
    clock.tick_with(monkeypatch, assembly.target, "forward", 1.0)
    family = conversations_family(assembly, TEXT)
    assert f"turns: a conversation of {first + 32} tokens, 16 of them" in family.legend[0]
    kept = family.arms["second turn, kept"]()
    read.clear()
    anew = family.arms["second turn, anew"]()
    assert kept.work == anew.work == (first + 32, 4)
    assert kept.figures == {"first_ms": (QUESTION + 1) * 1e3}
    assert anew.figures == {"first_ms": (first + 32) * 1e3}
    assert read[:first] + read[first + ANSWER :] == list(cut(TEXT, 0, first + QUESTION - 1)), "the text goes on"


def test_a_first_turn_is_as_long_as_the_positions_of_the_target_leave_it() -> None:
    """The answer, the question and the second answer take 36 of them; 1,000 tokens at most come before the last."""
    assembly = small_assembly(37)
    for limit in (37, 38, 100, 1003, 1004, 1005, None):
        assembly.target.limit = limit
        tokens = min(limit or 1004, 1004) - 4
        assert f" {tokens:,} tokens, {QUESTION} of them " in conversations_family(assembly, TEXT).legend[0]


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
        for module in ("specdec.devices", "specdec.engine"):
            monkeypatch.setattr(f"{module}.time", SimpleNamespace(perf_counter=self))
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


def test_the_share_of_a_step_is_what_passes_outside_the_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of seven tokens three are of full steps; the four after them, with fewer proposals, take much longer."""
    assembly = small_assembly(128)
    engine = assembly.engine("garbage", k=K, max_rows=8)
    work = eight(TEXT, SamplingParams(max_new_tokens=7))
    clock = SaidTime(monkeypatch)

    def as_full(seconds: float) -> Callable[..., float]:
        return lambda arena, window, *rest: seconds if window.width.tolist() == [1 + K] * 8 else 100 * seconds

    assert engine.draft is not None
    clock.tick_with(monkeypatch, assembly.target, "forward", as_full(6.0))
    clock.tick_with(monkeypatch, engine.draft, "propose", 1.0)
    clock.tick_with(monkeypatch, engine.policy, "accept", 2.0)
    clock.tick_with(monkeypatch, engine, "read", 1.0)
    sample = stepped(engine, work)
    assert sample.figures == {"rest_share": pytest.approx(0.3), "step_ms": pytest.approx(10_000)}
    assert sample.work == (8 * 32, 8 * 7)


def test_a_run_without_a_full_step_is_refused() -> None:
    engine = small_assembly(128).engine("garbage", k=K, max_rows=8)
    with pytest.raises(SpecdecError, match="no step had 8 rows with 4 proposals each; give the outputs more tokens"):
        stepped(engine, eight(TEXT, SamplingParams(max_new_tokens=4)))


@pytest.mark.slow
def test_queues_see_the_cells_that_grouping_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a forward costs what its longest row has, grouping must pay, and a second run is the first."""
    clock, assembly = SaidTime(monkeypatch), small_assembly(128)
    clock.tick_with(monkeypatch, assembly.target, "forward", lambda arena, window, live, longest, *taps: float(longest))
    rows = {row.contrast.arm: row for row in alternated(queues_family(assembly, TEXT, 24), rounds=1)}
    assert rows["ragged, grouped"].each[0] > 1.05
    assert rows["ragged again"].each == [1.0]
    assert rows["ragged"].each[0] < 1
    assert {row.work for row in rows.values()} == {(24 * 16, 24 * 6)}


@pytest.mark.slow
def test_a_batch_is_as_many_times_as_fast_as_it_has_rows_where_a_forward_costs_what_one_row_costs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    budget = 12
    monkeypatch.setattr(batches, "BUDGET", budget)
    clock, assembly = SaidTime(monkeypatch), small_assembly(128)
    clock.tick_with(monkeypatch, assembly.target, "forward", 1.0)
    rows = {row.contrast.arm: row for row in alternated(batches_family(assembly, TEXT), rounds=1)}
    assert rows["one batch"].each == [8.0]
    assert rows["one by one again"].each == [1.0]
    assert 2 < rows["one by one, drafts"].each[0] < 5, "an oracle of 0.8 with four proposals"
    assert 1 < rows["one batch, drafts"].each[0] < rows["one by one, drafts"].each[0], "a batch waits for its last row"
    assert {row.work[1] for row in rows.values()} == {8 * budget}


def test_the_requests_of_a_batch_differ_in_text_and_length() -> None:
    requests = different_requests(TEXT)
    assert len({request.prompt for request in requests}) == len(requests) == 8
    assert len({len(request.prompt) for request in requests}) > 4


def test_every_request_fits_a_row_of_the_benchmark() -> None:
    for one in (*different_requests(TEXT), *eight(TEXT, params_of_arms(258, ())["greedy"])):
        assert len(one.prompt) + one.params.max_new_tokens <= LONGEST_ROW
    for job in (*ragged_jobs(TEXT), *equal_jobs(TEXT)):
        assert len(job.prompt) + job.params.max_new_tokens <= LONGEST_ROW


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
    assert written == {
        "target": "tiny",
        "device": "cpu",
        "dtype": "float32",
        "backend": "reference",
        "legend": bench.legend,
        "rows": [
            {
                "arm": "all processors",
                "over": "greedy",
                "figure": "rest_share",
                "unit": "% of a step",
                "ratio": pytest.approx((1.25**5 * 0.125 / 0.11) ** (1 / 6)),
                "low": bench.ratios[0].estimate.low,
                "high": bench.ratios[0].estimate.high,
                "pairs": [[0.125, 0.1]] * 5 + [[0.125, 0.11]],
                "prompt_tokens": 6400,
                "output_tokens": 1600,
            }
        ],
    }
    assert "| all processors | greedy |" in (folder / "decoding.md").read_text()


def test_rows_and_legends_of_all_families_that_were_measured_are_kept_in_order(
    bench: DecodingBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {name: replace(planted(2.0), legend=[name]) for name in ("one", "two")}
    monkeypatch.setattr("benchsuite.benches.decoding.bench.FAMILIES", {n: lambda _, n=n: made[n] for n in made})
    rows = [*bench.measure("one"), *bench.measure("two")]
    assert bench.ratios == rows
    assert [len(row.each) for row in rows] == [6, 6]
    assert bench.legend == ["one", "two"]


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
