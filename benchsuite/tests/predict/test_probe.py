"""The probe: which steps it takes, what it books them under, and what it measures again."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchsuite.conformance.models.tiny import prompts
from benchsuite.measure.arms import Arm
from benchsuite.measure.runners import EngineRunner
from benchsuite.predict import commands
from benchsuite.predict.advisor import Advice
from benchsuite.predict.breakeven import MapCheck, break_even_map, oracle_arms
from benchsuite.predict.commands import advice_on, map_of
from benchsuite.predict.costs import Costs, DraftCosts, costs_identity, costs_path, strategy_of
from benchsuite.predict.forecasts import costs_of
from benchsuite.predict.interleave import SteppedRun, run_in_turn
from benchsuite.predict.ks import KS
from benchsuite.predict.probe import Cycling, Probed, measure_costs
from benchsuite.tests.rig import SETTING, Make
from specdec import Request, SamplingParams, SpecdecError
from specdec.cache import cache_root
from specdec.calibration import Point
from specdec.devices import Stopwatch
from specdec.engine import Engine
from specdec.interfaces import Controller
from specdec.lengths import Ks
from specdec.stats import Call, Marks, Stats, Step


class CountedAsks(Controller):
    """A controller that counts how often it was asked."""

    max_k = 6

    def __init__(self) -> None:
        self.asked, self.forgot = 0, 0

    def next_k(self, stats: Stats) -> int:
        """One."""
        self.asked += 1
        return 1

    def forget(self) -> None:
        """Counted too: how many had been asked for."""
        self.forgot = self.asked


def test_a_cycle_asks_for_every_k_as_often_and_lets_the_controller_choose_all_the_same() -> None:
    own = CountedAsks()
    made = Cycling(own, KS, 3)
    stats: Any = None
    found = [made.next_k(stats) for _ in range(5 * len(KS))]
    assert Counter(found) == dict.fromkeys(KS, 5)
    for turn in range(5):
        assert {*found[turn * len(KS) : (turn + 1) * len(KS)]} == {*KS}
    assert found[: len(KS)] != found[len(KS) : 2 * len(KS)], "in another order"
    assert own.asked == len(found)
    assert made.max_k == 6
    assert not made.deterministic
    again = Cycling(CountedAsks(), KS, 3)
    assert [again.next_k(stats) for _ in found] == found


def run_of(
    steps: Sequence[tuple[int, int, int, float]],
    calls: dict[str, float],
    branches: bool | None,
    chosen: bool = True,
    skips_padding: bool = False,
) -> Any:
    """An engine after a run: of each step the rows, K, proposals, which are all of one row, and seconds of its draft.

    Its target takes ten times that, and everything else a hundred times. ``branches`` is None without a draft.
    """
    marks, found = [0.0], list[Step]()
    for rows, _, made, draft in steps:
        at = len(marks)
        parts = [40 * draft, 20 * draft, 0.75 * draft, 10 * draft, 10 * draft, 15 * draft, 5 * draft, 0.25 * draft]
        for part in [*parts, 10 * draft]:
            marks.append(marks[-1] + part)
        found.append(Step(made, made + 1, rows, made, 0, rows, Marks(*range(at - 1, at + 9))))
    every = list[Call]()
    for name, seconds in calls.items():
        every.append(Call(name, len(marks), len(marks) + 1))
        marks += [marks[-1], marks[-1] + seconds]
    asked: list[Ks] = [k for _, k, _, _ in steps] if chosen else []
    stats = Stats(Stopwatch.recorded(marks), steps=found, calls=every, chosen=asked)
    drafting = None if branches is None else SimpleNamespace(branches=branches)
    return SimpleNamespace(stats=stats, draft=drafting, target=SimpleNamespace(skips_padding=skips_padding))


def test_where_padding_costs_nothing_a_forward_is_booked_at_its_slots_of_a_row() -> None:
    """Two rows of which one proposes: four proposals are three slots a row and five are 3.5, which would have taken 8 s
    and not 6 s with four. Of one proposal, a tree is booked at two slots and a chain, at 1.5, too."""
    alone = {Point(2, 64, width): seconds for width, seconds in enumerate((1.0, 2.0, 4.0, 8.0), 1)}
    steps = [(2, 4, 4, 0.7), (2, 5, 5, 0.6), (2, 1, 1, 0.3), (2, 4, 0, 0.1)]
    probed = Probed(alone)
    for name, branches in (("chain", False), ("tree", True)):
        probed.book(name, run_of(steps, {}, branches=branches, skips_padding=True), 2, 64)
    seconds = {3: [7.0], 4: [8.0], 2: [4.0], 1: [1.0]}
    assert probed.forward == {
        Point(2, 64, width): [pytest.approx(one)] * (1 + (width == 1)) for width, [one] in seconds.items()
    }
    assert probed.trees["tree"] == {
        Point(2, 64, width): [pytest.approx(one)] for width, [one] in seconds.items() if width > 1
    }
    assert {*probed.strategy("chain").steps[2][64]} == {0, 1, 4, 5}, "a draft's work is told by its proposals"


def test_parts_of_steps_are_booked_by_rows_length_and_proposals_and_told_as_medians() -> None:
    probed = Probed()
    steps = [(1, 4, 4, 9.0), (2, 4, 4, 1.0), (2, 4, 4, 5.0), (2, 4, 4, 2.0), (2, 4, 0, 0.5), (2, 0, 0, 0.25)]
    calls = {"admit": 3.0, "prefilled": 1.0, "observe": 50.0, "release": 0.5, "move": 1.5}
    probed.book("chain", run_of(steps, calls, branches=False), 2, 64)
    probed.book("chain", run_of([(1, 4, 2, 8.0)], {}, branches=False), 1, 32)
    probed.book("tree", run_of(steps, {}, branches=True), 2, 64)
    probed.book("", run_of([(2, 0, 0, 1.0), (1, 0, 0, 7.0)], {}, branches=None, chosen=False), 2, 64)
    assert probed.plain == {Point(2, 64, 1): [pytest.approx(110.0)]}
    found = probed.strategy("chain")
    assert found.steps == {
        2: {64: {4: pytest.approx(2.0), 0: pytest.approx(0.5), -1: pytest.approx(0.25)}},
        1: {32: {2: pytest.approx(8.0)}},
    }
    assert found.rest == {2: {1: pytest.approx(150.0), 0: pytest.approx(25.0)}, 1: {1: pytest.approx(800.0)}}
    assert found.admit == {64: 2.0, 32: 0.0}
    assert found.release == 0.5
    assert found.forward == {}
    assert {point: len(values) for point, values in probed.forward.items()} == {
        **{Point(2, 64, 5): 3, Point(2, 64, 1): 4, Point(1, 32, 3): 1},
    }
    assert probed.forward[Point(2, 64, 5)] == [pytest.approx(one) for one in (10.0, 50.0, 20.0)]
    tree = probed.strategy("tree")
    assert tree.forward == {Point(2, 64, 5): pytest.approx(20.0)}, "one slot is no tree"
    assert tree.steps == {2: found.steps[2]}
    assert tree.admit == {64: 0.0}
    assert Probed().noise == 0.0
    probed.book("silent", run_of([(1, 0, 0, 2.0)], {}, branches=False, chosen=False), 1, 8)
    probed.book("single", run_of([(1, 1, 1, 3.0)], {}, branches=False), 1, 8)
    assert probed.strategy("single").rest == {1: {1: pytest.approx(300.0)}}
    each = run_of([(2, 4, 4, 1.0), (2, 0, 0, 2.0)], {}, branches=False)
    each.stats.chosen = [(0, 4), (0, 0)]
    probed.book("each", each, 2, 8)
    assert probed.strategy("each").rest == {2: {1: pytest.approx(100.0), 0: pytest.approx(200.0)}}
    assert probed.strategy("each").steps == {2: {8: {4: pytest.approx(1.0), -1: pytest.approx(2.0)}}}
    silent = probed.strategy("silent")
    assert silent.steps == {1: {8: {-1: 2.0}}}
    assert silent.rest == {1: {0: pytest.approx(200.0)}}


NAME = "garbage/match/fixed"
TEXTS = [(n,) * 8 for n in range(1, 8)]


@pytest.fixture
def asked_of_engines(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[Request]]:
    """The requests that engines were given of more tokens than those of a warm-up."""
    found, submit = list[Sequence[Request]](), Engine.submit

    def seen(engine: Engine, requests: Sequence[Request], **given: Any) -> None:
        if requests[0].params.max_new_tokens > 3:
            found.append(requests)
        submit(engine, requests, **given)

    monkeypatch.setattr(Engine, "submit", seen)
    return found


@pytest.mark.slow
def test_a_probe_takes_two_turns_of_texts_that_go_on_where_the_row_before_began(
    assemble: Make, asked_of_engines: list[Sequence[Request]]
) -> None:
    """Of two rows, 24 tokens of context and a strategy with up to two proposals; a calibration of other contexts is
    left to who made it. What is known already is not measured again, and its age stays."""
    build = assemble(max_rows=2, max_length=48)
    build.calibration.measure([1], [7], [1])
    engines = {2: {NAME: build.engine("garbage", k=2, max_rows=2)}}
    controller, params = CountedAsks(), SamplingParams(max_new_tokens=99, eos=(0,))
    controller.max_k, engines[2][NAME].controller = 2, controller
    found = measure_costs({2: build}, engines, TEXTS, [24], params, {"a": "1"})
    assert engines[2][NAME].controller is controller
    assert controller.forgot == controller.asked > 0
    every = [request for one in asked_of_engines for request in one]
    assert {request.params for request in every} == {replace(params, max_new_tokens=16, eos=())}
    told = [[[token - 1 for token in request.prompt[::8]] for request in one] for one in asked_of_engines]
    assert told == [[[0, 1], [1, 2]]] * 2 + [[[2, 3], [3, 4]]] * 2, "plain decoding and the draft, in each turn"
    assert {len(request.prompt) for request in every} == {16}
    assert found.forward.keys() == {Point(2, 24, width) for width in (1, 2, 3)}
    assert found.plain.keys() == {Point(2, 24, 1)}
    own = found.strategies[NAME]
    assert {*own.steps[2][24]} == {-1, 1, 2}
    assert own.admit.keys() == found.prefill.keys() == {24}
    assert found.identity == {"a": "1"}
    assert abs(time.time() - found.made) < 600
    assert found.noise > 0

    assert measure_costs({2: build}, engines, TEXTS, [24], params, {}, known=found) is found
    elsewhere = Point(9, 9, 9)
    older = replace(
        found,
        made=7.0,
        forward={**found.forward, elsewhere: 5.0},
        plain={**found.plain, elsewhere: 6.0},
        prefill={**found.prefill, 9: 8.0},
    )
    more = {2: {**engines[2], "ngram/match/fixed": build.engine("ngram", k=1, max_rows=2)}}
    again = measure_costs({2: build}, more, TEXTS, [24], params, {"a": "1"}, known=older)
    assert again.strategies.keys() == more[2].keys()
    assert again.strategies[NAME] == own
    assert (again.forward[elsewhere], again.plain[elsewhere], again.prefill[9], again.made) == (5.0, 6.0, 8.0, 7.0)


def test_a_probe_without_strategies_measures_plain_decoding_of_at_least_one_token_of_a_prompt(
    assemble: Make, asked_of_engines: list[Sequence[Request]]
) -> None:
    """Half of what is decoded, eight tokens, would leave nothing of a context of eight. Rows that ``known`` lacks are
    measured though no strategy is missing."""
    build, params = assemble(max_rows=1, max_length=48), SamplingParams(max_new_tokens=99)
    found = measure_costs({1: build}, {1: {}}, TEXTS, [8], params, {})
    assert [len(one[0].prompt) for one in asked_of_engines] == [1, 1]
    assert found.forward.keys() == found.plain.keys() == {Point(1, 8, 1)}
    assert found.skips_padding is build.target.skips_padding
    assert found.strategies == {}
    other = replace(found, plain={Point(2, 8, 1): 1.0})
    assert measure_costs({1: build}, {1: {}}, TEXTS, [8], params, {}, known=other).plain.keys() == {
        Point(rows, 8, 1) for rows in (1, 2)
    }


@pytest.mark.slow
def test_a_probe_measures_what_is_missing_and_asks_every_text_in_turn(
    assemble: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds = {rows: assemble(max_rows=rows, max_length=96) for rows in (1, 2)}
    engines = {rows: {NAME: build.engine("garbage", k=8)} for rows, build in builds.items()}
    texts: list[tuple[int, ...]] = [(n,) * 8 for n in range(1, 8)]
    params = SamplingParams(max_new_tokens=99, eos=(0,))
    asked: dict[int, list[Sequence[Request]]] = {1: [], 2: []}
    submit = Engine.submit

    def seen(engine: Engine, requests: Sequence[Request], **given: Any) -> None:
        asked[len(requests)].append(requests)
        submit(engine, requests, **given)

    monkeypatch.setattr(Engine, "submit", seen)
    controllers = [engines[rows][NAME].controller for rows in (1, 2)]
    found = measure_costs(builds, engines, texts, [24, 40], params, {"a": "1"})
    assert [engines[rows][NAME].controller for rows in (1, 2)] == controllers
    for rows, every in asked.items():
        probes = [one for one in every if one[0].params.max_new_tokens > 3]
        assert {request.params for one in probes for request in one} == {replace(params, max_new_tokens=16, eos=())}
        assert Counter(len(one[0].prompt) for one in probes) == {16: 4, 32: 4}, "plain and the draft, two turns each"
        for one in probes:
            for request in one:
                first = [texts.index(request.prompt[at : at + 8]) for at in range(0, len(request.prompt), 8)]
                assert first == [(first[0] + place) % 7 for place in range(len(first))]
        begins = {one[0].prompt[0] - 1 for one in probes}
        assert begins == {0, rows}
        assert all(two.prompt[0] == one.prompt[0] + 1 for one, two in (one for one in probes if rows == 2))
    assert found.identity == {"a": "1"}
    assert found.plain.keys() == {Point(rows, at, 1) for rows in (1, 2) for at in (24, 40)}
    assert found.forward.keys() == {
        Point(rows, at, width) for rows in (1, 2) for at in (24, 40) for width in (1, 2, 3, 5, 9)
    } | {point for point in found.forward if point.width in (4, 7)}
    assert found.prefill.keys() == {24, 40}
    assert found.noise > 0
    own = found.strategies[NAME]
    assert own.steps.keys() == own.rest.keys() == {1, 2}
    assert own.admit.keys() == own.steps[1].keys() == {24, 40}
    assert {*own.steps[1][24]} <= {-1, *range(9)}
    assert min(found.prefill.values()) > 0 < min(found.plain.values())

    assert measure_costs(builds, engines, texts, [24, 40], params, {"a": "1"}, known=found) is found
    older = replace(found, made=7.0)
    more = {1: {**engines[1], "ngram/match/fixed": builds[1].engine("ngram", k=2)}, 2: engines[2]}
    again = measure_costs(builds, more, texts, [24, 40], params, {"a": "1"}, known=older)
    assert again.strategies.keys() == {NAME, "ngram/match/fixed"}
    assert again.strategies[NAME] == own
    assert again.strategies["ngram/match/fixed"].steps.keys() == {1}
    assert again.made == 7.0
    assert again.forward.keys() >= found.forward.keys()


class FakeBench:
    """A bench of stages that are given, whose engines only say how wide their windows are."""

    def __init__(self, assemblies: dict[Any, Any], engines: Sequence[tuple[Arm, int]], texts: Sequence[int]) -> None:
        self.assemblies, self.widths = assemblies, engines
        self.texts = texts

    def stages(self) -> Any:
        """Each with its assembly."""
        return [(setting, SimpleNamespace(target=one.target, assembly=one)) for setting, one in self.assemblies.items()]

    def engines(self) -> Any:
        """An arm and its engine."""
        return [(arm, SimpleNamespace(max_window=width)) for arm, width in self.widths]

    def prompts(self) -> Any:
        """Workload, place, and tokens."""
        return [("chat", place, (1,) * length) for place, length in enumerate(self.texts)]


@pytest.fixture
def measurings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What was to be measured, by the names of ``measure_costs``; of engines their widths. The cache is empty."""
    kernels = cache_root() / "kernels"  # which are compiled already
    kernels.mkdir(parents=True, exist_ok=True)
    (tmp_path / "kernels").symlink_to(kernels)
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    found = list[dict[str, Any]]()

    def measured(
        assemblies: Any, engines: Any, texts: Any, lengths: Any, params: Any, identity: Any, known: Any
    ) -> Any:
        widths = {rows: {name: engine.max_window for name, engine in some.items()} for rows, some in engines.items()}
        said = {"assemblies": assemblies, "widths": widths, "texts": texts, "lengths": lengths}
        found.append({**said, "params": params, "known": known})
        drafts = DraftCosts({1: {9: {0: 1.0}}}, {1: {0: 1.0}}, {})
        names = {name for some in engines.values() for name in some}
        point = {Point(1, 9, 1): 1.0}
        return Costs(identity, point, {9: 1.0}, point, dict.fromkeys(names, drafts), 0.0)

    monkeypatch.setattr("benchsuite.predict.forecasts.measure_costs", measured)
    return found


BASE = SETTING.replaced(max_new_tokens=24).without_workload
PAIR, OTHER = replace(BASE, batch=2), replace(BASE, target="another")


@pytest.fixture
def two_targets(assemble: Make, measurings: object) -> Any:
    """A run of two targets, one of them in two batches, with prompts of 20 and of 90 tokens."""
    build = assemble(max_length=96)
    engines = [
        (Arm(BASE), 1),
        (Arm(BASE, "ngram", k=4), 5),
        (Arm(BASE, "ngram", k=8), 9),
        (Arm(BASE, "ngram", k=2), 3),
        (Arm(PAIR, "suffix", k=4), 5),
        (Arm(OTHER, "garbage", k=4), 7),
    ]
    return FakeBench({BASE: build, PAIR: build, OTHER: build}, engines, (20, 90))


def test_costs_of_a_run_are_measured_with_its_widest_engines_for_each_target(
    two_targets: Any, measurings: list[dict[str, Any]]
) -> None:
    found = costs_of(two_targets, "cached")
    assert [settings for settings, _, _ in found] == [[BASE, PAIR], [OTHER]]
    build = two_targets.assemblies[BASE]
    assert measurings[0]["assemblies"] == {1: build, 2: build}
    assert measurings[0]["widths"] == {1: {"ngram/match/fixed": 9}, 2: {"suffix/match/fixed": 5}}
    assert measurings[1]["widths"] == {1: {"garbage/match/fixed": 7}}
    assert [len(text) for text in measurings[0]["texts"]] == [20, 90]
    assert measurings[0]["lengths"] == [20 + 12, 96 - 8], "the middles of the shortest and of the longest that has room"
    assert {type(length) for length in measurings[0]["lengths"]} == {int}
    assert measurings[0]["params"] == BASE.params(())
    assert [one["known"] for one in measurings] == [None, None]


@pytest.mark.slow
def test_costs_are_kept_where_they_are_found_again_unless_they_are_to_be_measured_anew(
    two_targets: Any, measurings: list[dict[str, Any]], tmp_path: Path
) -> None:
    _, costs, said = costs_of(two_targets, "cached")[0]
    path = costs_path(costs_identity(BASE, two_targets.assemblies[BASE].target))
    assert Costs.load(path, costs.identity) == costs
    assert said == f"costs of tiny and 2 strategies: {path}"
    del two_targets.assemblies[OTHER]
    for given, known in (("cached", costs), ("fresh", None), (str(path), costs)):
        [(_, _, said)] = costs_of(two_targets, given, [Arm(BASE, "ngram", k=4)])
        assert measurings[-1]["known"] == known
        assert measurings[-1]["widths"] == {1: {"ngram/match/fixed": 9}, 2: {}}
        assert said.startswith(f"costs of tiny and 1 strategies: {path}")
        assert ("; measured just now: what was known of 2 strategies" in said) is (known is not None)
        costs.save(path)
    costs_of(two_targets, "cached", [Arm(PAIR, "suffix", k=4)])
    assert measurings[-1]["widths"] == {1: {}, 2: {"suffix/match/fixed": 5}}
    foreign = replace(costs, identity={**costs.identity, "machine": "another"})
    foreign.save(tmp_path / "theirs.json")
    with pytest.raises(SpecdecError, match="were made elsewhere: machine 'another', here"):
        costs_of(two_targets, str(tmp_path / "theirs.json"))


@pytest.mark.slow
def test_what_costs_depend_on_tells_targets_apart_by_their_weights(assemble: Make) -> None:
    one = assemble().target
    found = costs_identity(SETTING, one)
    assert found.keys() == {
        *("machine", "vectors", "threads", "torch", "commit", "target", "weights", "dtype", "backend")
    }
    assert found["target"] == "tiny"
    assert found["dtype"] == "float32"
    assert costs_identity(SETTING.replaced(dtype="auto"), one) == found, "what it is, not what was asked for"
    parts = {name: getattr(one, name) for name in ("model", "device", "dtype", "ops")}
    quantised: Any = SimpleNamespace(**parts, bits=8)
    assert costs_identity(SETTING.replaced(dtype="int8"), quantised) == {**found, "dtype": "int8"}
    twin = assemble().target
    assert costs_identity(SETTING, twin) == found
    smallest = min(twin.model.parameters(), key=lambda parameter: parameter.numel())
    before = smallest.detach().clone()
    try:
        smallest.data += 1.0
        assert costs_identity(SETTING, twin)["weights"] != found["weights"]
    finally:
        smallest.data.copy_(before)


def test_runs_in_turn_have_the_outputs_and_counters_of_runs_alone_and_begin_without_a_memory(assemble: Make) -> None:
    forgotten = list[Arm]()

    class Forgetting(EngineRunner):
        def forget(self) -> None:
            forgotten.append(self.arm)
            super().forget()

    build = assemble(max_rows=2, max_length=64)
    without = SETTING.without_workload
    arms = [Arm(SETTING), Arm(SETTING, "garbage", k=2)]
    runners: dict[Arm, EngineRunner] = {
        replace(arm, setting=without): Forgetting(arm, build.engine(arm.draft, k=arm.k)) for arm in arms
    }
    stages: Any = {without: SimpleNamespace(runners=runners)}
    asked = [Request(n, prompt, SamplingParams(max_new_tokens=6 + n)) for n, prompt in enumerate(prompts(2))]
    found = run_in_turn(stages, arms, asked, random.Random(0))
    assert forgotten == arms
    for arm in arms:
        alone = runners[replace(arm, setting=without)].run(asked)
        one = found[arm]
        assert one.tokens == alone.tokens
        assert one.decoded == one.emitted == sum(map(len, alone.tokens))
        assert one.forwards == alone.forwards
        assert one.mean_length == alone.mean_length
        assert one.emissions == []
        assert one.wall_s > one.decode_s > 0
        assert one.stats is not None


def test_a_stepped_run_counts_the_seconds_of_its_own_steps(assemble: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes on by one second whenever it is read."""
    now = [0.0]

    def clock() -> float:
        now[0] += 1.0
        return now[0]

    monkeypatch.setattr("benchsuite.predict.interleave.time.perf_counter", clock)
    engine = assemble(max_length=64).engine(None, k=0)
    run = SteppedRun(engine, [Request(0, prompts(1)[0], SamplingParams(max_new_tokens=5, eos=()))])
    assert (run.begun_s, run.decode_s) == (0.0, 0.0)
    run.begin()
    began = engine.stats.counts["num_emitted_tokens"]
    assert run.progress == began / 5
    steps = 0
    while engine.rows.live:
        run.step()
        steps += 1
        assert run.progress == (began + steps) / 5
    outcome = run.outcome()
    assert steps
    assert (run.begun_s > 0, run.decode_s > 0) == (True, True)
    assert outcome.decode_s == run.decode_s
    assert outcome.wall_s == run.begun_s + run.decode_s
    assert run.decode_s / steps == run.decode_s // steps


def test_what_a_device_has_still_to_do_belongs_to_the_prefill_or_the_step_that_asked_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A device that works for three seconds on a prefill and for five on a step, after the call has returned."""
    clock, queue = SimpleNamespace(now=1000.0), list[float]()

    def wait(device: torch.device) -> None:
        clock.now += sum(queue)
        queue.clear()

    monkeypatch.setattr("benchsuite.predict.interleave.time.perf_counter", lambda: clock.now)
    monkeypatch.setattr(torch.cuda, "synchronize", wait)
    engine: Any = SimpleNamespace(
        target=SimpleNamespace(device=torch.device("cuda")),
        run=lambda asked: None,
        submit=lambda asked, **given: queue.append(3.0),
        step=lambda: queue.append(5.0),
    )
    run = SteppedRun(engine, [])
    run.begin()
    assert (run.begun_s, run.decode_s) == (3.0, 0.0)
    clock.now += 70.0  # the steps of others
    run.step()
    run.step()
    assert (run.begun_s, run.decode_s) == (3.0, 10.0)


def test_advice_is_asked_for_each_text_with_its_part_of_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three minutes for two texts, of which the first took 40 seconds: 90 seconds, then all of the other 140."""
    now, asked, prepared = [1000.0], list[tuple[list[Arm], float]](), list[Any]()

    class Bench:
        def __init__(self, plan: Any) -> None:
            prepared.append(plan.prompts)

        def prepare(self, arms: Sequence[Arm]) -> None:
            prepared.append([*arms])

    class Advisor:
        def __init__(self, bench: Any, arms: Sequence[Arm], seconds: float) -> None:
            assert len(prepared) == 2
            asked.append(([*arms], seconds))

        def advise(self) -> list[Advice]:
            now[0] += 40.0
            arm = asked[-1][0][0]
            return [Advice(arm, 1.0, 1.0, 1.0, 1.0, [], 0.0, 9)]

    monkeypatch.setattr(commands, "Bench", Bench)
    monkeypatch.setattr(commands, "Advisor", Advisor)
    monkeypatch.setattr("benchsuite.predict.commands.time.perf_counter", lambda: now[0])
    settings = [SETTING.replaced(workload=text, batch=batch) for text in ("chat", "reasoning") for batch in (1, 2)]
    found = advice_on(settings, ["a", "b"], ["match"], [8, 2], 5, 3.0)
    assert [one.best.setting.workload for one in found] == ["chat", "reasoning"]
    assert [seconds for _, seconds in asked] == [90.0, 140.0]
    assert prepared[0] == 5
    assert prepared[1] == [arm for arms, _ in asked for arm in arms]
    for (arms, _), text in zip(asked, ("chat", "reasoning"), strict=True):
        assert {(arm.setting.batch, str(arm.draft), arm.controller, arm.k) for arm in arms} == {
            (batch, draft, controller, k)
            for batch in (1, 2)
            for draft in ("a", "b")
            for controller, k in (("fixed", 8), ("fixed", 2), ("goodput", 8))
        }
        assert {arm.setting.workload for arm in arms} == {text}
        assert {strategy_of(arm).split("/")[1] for arm in arms} == {"match"}


def test_a_map_is_of_costs_that_were_measured_beside_its_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of both batches of a text, whose oracles are built before anything is measured."""
    told, point = list[Any](), {Point(1, 9, 1): 1.0, Point(1, 9, 17): 2.0}
    costs = Costs({}, point, {}, {Point(1, 9, 1): 1.0}, {}, 0.0, made=0.0)
    checks = [MapCheck(1, 9, 2, 0.4, 0.5, 1.6, 1.7)]

    class Bench:
        def __init__(self, plan: Any) -> None:
            told.append(plan.prompts)

        def prepare(self, arms: Sequence[Arm]) -> None:
            told.append([*arms])

    def checked(bench: Any, arms: Sequence[Arm]) -> Any:
        assert isinstance(bench, Bench)
        told.append([*arms])
        return costs, checks

    monkeypatch.setattr(commands, "Bench", Bench)
    monkeypatch.setattr(commands, "checked_map", checked)
    settings = [SETTING, SETTING.replaced(batch=2)]
    assert map_of(settings, 5, 0.25) == (costs, break_even_map(costs, 0.25), checks)
    assert told == [5, oracle_arms(settings), oracle_arms(settings)]
