"""Slowdowns that are planted in an engine: what they waste, where, and which tokens they take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import floor
from typing import Any

import pytest

from benchsuite.gate import plants
from benchsuite.gate.plants import KINDS, OF_A_DRAFT, OF_ALL, Plant, plant
from benchsuite.gate.record import GateError
from benchsuite.tests.rig import Make
from specdec import Completion, Engine, Request, SamplingParams, Verdict

PROMPT = tuple(b"one two one two one two ")
STEP_S, TICK_S = 64.0, 2.0**-6


class PlantClock:
    """Time that passes where a test says so, and a tick whenever it is asked."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += TICK_S
        return self.now

    def lengthen(self, owner: Any, name: str, seconds: float) -> None:
        """Have every call of ``owner.name`` take so long."""
        original = getattr(owner, name)

        def longer(*given: Any, **named: Any) -> Any:
            self.now += seconds
            return original(*given, **named)

        object.__setattr__(owner, name, longer)


@pytest.fixture
def plant_clock(monkeypatch: pytest.MonkeyPatch) -> PlantClock:
    """The clock by which time is wasted."""
    made = PlantClock()
    monkeypatch.setattr(plants, "perf_counter", made)
    return made


def some_requests(size: int = 12, prompt: tuple[int, ...] = PROMPT) -> list[Request]:
    return [Request(0, prompt, SamplingParams(max_new_tokens=size))]


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
def test_rejected_proposals_change_no_token_and_are_the_asked_share(assemble: Make, share: float) -> None:
    """As many as are due, one of a step; the rest is due later, and nothing in a run that is not chosen."""
    [expected] = assemble().engine("oracle(0.8)", k=3).run(some_requests(40))
    engine, kept = assemble().engine("oracle(0.8)", k=3), list[tuple[int, int]]()
    accept = engine.policy.accept

    def noted(*given: Any) -> Verdict:
        verdict = accept(*given)
        kept.append((int(verdict.num_accepted[0]), 0))
        return verdict

    object.__setattr__(engine.policy, "accept", noted)
    plant(engine, Plant("acceptance", share), {PROMPT})
    rejecting = engine.policy.accept

    def noted_again(*given: Any) -> Verdict:
        verdict = rejecting(*given)
        kept[-1] = kept[-1][0], int(verdict.num_accepted[0])
        path = verdict.path[0].tolist()
        assert path == [*range(kept[-1][1] + 1), *[-1] * (len(path) - kept[-1][1] - 1)]
        return verdict

    object.__setattr__(engine.policy, "accept", noted_again)
    [done] = engine.run(some_requests(40))
    assert done.tokens == expected.tokens
    due = 0.0
    for before, after in kept:
        due += share * before
        taken = before > 0 and due >= 1
        assert before - after == taken
        due -= taken
    assert {before - after for before, after in kept} == {0, 1}
    if share == 0.25:
        assert sum(before - after for before, after in kept) == floor(share * sum(before for before, _ in kept))
    kept.clear()
    engine.run(some_requests(40, PROMPT[1:]))
    assert all(before == after for before, after in kept)


PARTS: dict[str, Callable[[Engine], tuple[Any, str]]] = {
    "host": lambda engine: (engine, "read"),
    "draft": lambda engine: (engine.draft, "propose"),
    "K/V": lambda engine: (engine.arena, "commit"),
    "observe": lambda engine: (engine.draft, "observe"),
}
"""The part of a step that each kind lengthens by a fraction of the step."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", PARTS)
def test_a_fraction_of_a_step_is_wasted_in_one_part_from_the_second_step_of_a_chosen_run(
    assemble: Make, plant_clock: PlantClock, kind: str
) -> None:
    """The draft wastes whole forwards of a slot, K/V whole copies: what is wasted in excess is left out later."""
    engine, took = assemble().engine("garbage", k=2), list[float]()
    forward = engine.target.forward
    owner, name = PARTS[kind](engine)

    def timed(*given: Any) -> Any:
        plant_clock.now += STEP_S if given[0] is engine.arena else 3.0
        return forward(*given)

    object.__setattr__(engine.target, "forward", timed)
    plant(engine, Plant(kind, 0.25), {PROMPT})
    slowed = getattr(owner, name)

    def around(*given: Any, **named: Any) -> Any:
        start = plant_clock.now
        result = slowed(*given, **named)
        took.append(plant_clock.now - start)
        return result

    object.__setattr__(owner, name, around)
    [expected] = assemble().engine("garbage", k=2).run(some_requests())
    for _ in range(2):
        took.clear()
        plant_clock.now += 1000.0  # between two runs
        assert engine.run(some_requests())[0].tokens == expected.tokens
        assert len(took) > 9
        assert took[0] < 0.1, "a run's first return has none before it"
        steps = len(took) - 1
        quantum = 3.0 if kind == "draft" else 0.0
        wasted = sum(took[1:])
        assert 0.25 * STEP_S * steps <= wasted < 0.25 * STEP_S * steps + quantum + 0.1 * steps
        assert all(abs(one - 0.25 * STEP_S) < quantum + 0.1 for one in took[1:]), "it is wasted where it is due"
    took.clear()
    engine.run(some_requests(prompt=PROMPT[1:]))
    assert sum(took) < 0.1 * len(took)


@pytest.mark.parametrize(("kind", "amount", "wasted"), [("forward", 0.25, STEP_S / 4), ("pause", 5.0, 5.0)])
def test_a_slowdown_of_all_rows_lengthens_every_forward_of_the_target(
    assemble: Make, plant_clock: PlantClock, kind: str, amount: float, wasted: float
) -> None:
    for draft in ("ngram", None):
        [expected] = assemble().engine(draft, k=2).run(some_requests(4))
        engine = assemble().engine(draft, k=2)
        plant_clock.lengthen(engine.target, "forward", STEP_S)
        plant(engine, Plant(kind, amount))
        start, count = plant_clock.now, 0
        [done] = engine.run(some_requests(4))
        count = round((plant_clock.now - start) / (STEP_S + wasted))
        assert done.tokens == expected.tokens
        assert count == engine.stats.counts["target_forwards"]
        assert plant_clock.now - start == pytest.approx(count * (STEP_S + wasted), abs=0.5)


def test_admitting_wastes_a_fraction_of_the_last_runs_first_token(assemble: Make, plant_clock: PlantClock) -> None:
    engine = assemble(max_rows=1).engine("ngram", k=2)
    plant(engine, Plant("admit", 1e4), {PROMPT})

    def ran(*prompts: tuple[int, ...]) -> tuple[float, list[Completion]]:
        start = plant_clock.now
        asked = [Request(place, prompt, SamplingParams(max_new_tokens=3)) for place, prompt in enumerate(prompts)]
        done = engine.run(asked)
        return plant_clock.now - start, done

    wasted, done = ran(PROMPT)
    assert wasted < 0.5, "no run was before the first"
    for prompts in ((PROMPT,), (PROMPT[1:], PROMPT), (PROMPT,)):
        first = min(one.times[0] for one in done)
        wasted, done = ran(*prompts)
        assert wasted == pytest.approx(1e4 * first * len(prompts), abs=0.5)
    wasted, _ = ran(PROMPT[1:])
    assert wasted < 0.5, "the run has none of the chosen prompts"


@pytest.mark.parametrize("draft", ["ngram", None])
@pytest.mark.parametrize(
    ("when", "slow"), [("4", (3, 7)), ("first", (0, 1, 4)), (None, range(8)), ("2", (1, 3, 5, 7))], ids=str
)
def test_some_requests_take_longer_by_a_fraction_of_their_run(
    assemble: Make, plant_clock: PlantClock, when: str | None, slow: Sequence[int], draft: str | None
) -> None:
    """Every fourth, or the first of each: three prompts in turn, of which one is asked for fewer tokens later."""
    engine, took = assemble().engine(draft, k=2), list[float]()
    plant(engine, Plant("request", 9.0, when=when))
    plant_clock.lengthen(engine.target, "forward", STEP_S)
    for prompt, size in [(PROMPT, 2), (PROMPT[1:], 2), (PROMPT, 2), (PROMPT[1:], 2), (PROMPT, 3), *[(PROMPT, 3)] * 3]:
        start = plant_clock.now
        [done] = engine.run(some_requests(size, prompt))
        took.append((plant_clock.now - start) / engine.stats.counts["target_forwards"] / STEP_S)
        assert len(done.tokens) == size
    assert [place for place, one in enumerate(took) if one > 5] == [*slow]


def test_a_plant_that_cannot_be_meant_is_refused(assemble: Make) -> None:
    for text in ("x=1", "host", "host=x", "host=1@", "=1", "host=0.1#one", "host=0.1@ngram@suffix", "request=1/0"):
        with pytest.raises(GateError, match="expected KIND=AMOUNT@DRAFT#PROMPT~WORKLOAD") as refused:
            Plant.of(text)
        assert repr(text) in str(refused.value)
        assert ", ".join(KINDS) in str(refused.value)
    for text in ("forward=1@ngram", "pause=1#1", "pause=1~chat"):
        with pytest.raises(GateError, match="strikes every row; expected KIND=AMOUNT alone"):
            Plant.of(text)
    assert Plant.of(" host=0.06@ngram(n=3)#12~my text ") == Plant("host", 0.06, "ngram(n=3)", 12, "my text")
    for text in ("host=1/4", "request=1#1", "request=1/2~chat"):
        with pytest.raises(GateError, match="request alone has a time, request=AMOUNT/4@DRAFT, and no place"):
            Plant.of(text)
    assert Plant.of("request=9/4@ngram") == Plant("request", 9.0, "ngram", when="4")
    assert Plant.of("request=1/first").when == "first"
    assert {*KINDS} == {*PARTS, "admit", "acceptance", "request", "forward", "pause"}
    plain = assemble().engine(None)
    for kind in KINDS:
        if kind in OF_A_DRAFT:
            with pytest.raises(GateError, match=f"cannot plant {kind} in plain decoding: it has no draft"):
                plant(plain, Plant(kind, 1.0))
        else:
            plant(plain, Plant(kind, 1.0))
    assert {*OF_A_DRAFT, *OF_ALL, "host", "K/V", "request"} == {*KINDS}
