"""Slowdowns that are planted in an engine: what they waste, where, and which tokens they take."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchsuite.gate import plants
from benchsuite.gate.plants import Plant, plant, plant_in
from benchsuite.gate.record import GateError
from benchsuite.tests.rig import Make
from specdec import Request, SamplingParams

PROMPT = tuple(b"one two one two one two ")


class PlantClock:
    """Time that passes by a second whenever it is asked."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def some_requests(size: int = 12) -> list[Request]:
    return [Request(0, PROMPT, SamplingParams(max_new_tokens=size))]


def test_rejected_proposals_change_no_token_and_are_the_asked_share(assemble: Make) -> None:
    plain = assemble().engine("oracle(1.0)", k=3)
    [expected] = plain.run(some_requests())
    accepted = sum(step.accepted for step in plain.stats.steps)
    for share in (0.5, 1.0):
        engine = assemble().engine("oracle(1.0)", k=3)
        plant(engine, Plant("acceptance", share))
        [done] = engine.run(some_requests())
        assert done.tokens == expected.tokens
        less = sum(step.accepted for step in engine.stats.steps)
        assert 0 < less < accepted
    others = assemble().engine("oracle(1.0)", k=3)
    plant(others, Plant("acceptance", 1.0), {(1, 2)})
    assert others.run(some_requests())[0].tokens == expected.tokens
    assert sum(step.accepted for step in others.stats.steps) == accepted


def test_time_is_wasted_as_long_as_is_asked_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = PlantClock()
    monkeypatch.setattr(plants, "perf_counter", clock)
    owner = SimpleNamespace(work=lambda *given, **named: (given, named))
    plants._lengthen(owner, "work", lambda seconds: 5 * seconds)
    assert owner.work(1, a=2) == ((1,), {"a": 2})
    assert clock.now == 2 + 5  # the call took one second: five more are asked for until five have gone by


def test_waste_between_two_returns_is_a_fraction_of_the_time_between(monkeypatch: pytest.MonkeyPatch) -> None:
    now, wasted = [100.0], list[float]()
    monkeypatch.setattr(plants, "perf_counter", lambda: now[0])
    engine, owner = SimpleNamespace(stats=object()), SimpleNamespace(work=lambda: now.__setitem__(0, now[0] + 1.0))

    def waste() -> None:
        wasted.append(now[0])
        now[0] += 0.75

    running = SimpleNamespace(chosen=True)
    plants._slow(cast(Any, engine), cast(Any, running), owner, "work", 0.5, waste)
    owner.work()
    assert wasted == []  # a run's first return has none before it
    now[0] += 3.0
    owner.work()  # 3 s since the last return: 1.5 s to waste, in two portions
    assert wasted == [105.0, 105.75]
    now[0] += 2.0
    owner.work()  # 1 s
    assert len(wasted) == 4
    running.chosen = False
    now[0] += 9.0
    owner.work()
    before = len(wasted)
    running.chosen, engine.stats = True, object()
    now[0] += 9.0
    owner.work()
    assert len(wasted) == before


@pytest.mark.parametrize(
    ("kind", "owner", "name"),
    [
        ("host", lambda engine: engine, "read"),
        ("draft", lambda engine: engine.draft, "propose"),
        ("K/V", lambda engine: engine.arena, "commit"),
        ("observe", lambda engine: engine.draft, "observe"),
        ("admit", lambda engine: engine.draft, "admit"),
        ("forward", lambda engine: engine.target, "forward"),
        ("pause", lambda engine: engine.target, "forward"),
    ],
)
def test_each_kind_is_planted_in_its_place_and_changes_no_token(
    assemble: Make, kind: str, owner: Any, name: str
) -> None:
    [expected] = assemble().engine("ngram", k=2).run(some_requests(4))
    engine = assemble().engine("ngram", k=2)
    held = owner(engine)
    before = getattr(held, name)
    plant(engine, Plant(kind, 0.0001))
    assert getattr(held, name) != before
    assert engine.run(some_requests(4))[0].tokens == expected.tokens


def test_a_plant_is_for_the_draft_prompt_and_workload_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[Any, Plant, Any]] = []
    monkeypatch.setattr(plants, "plant", lambda engine, planted, chosen: given.append((engine, planted, chosen)))
    one, two = SimpleNamespace(target=object()), SimpleNamespace(target=object())
    arms = [(SimpleNamespace(draft=None), one), (SimpleNamespace(draft="ngram"), two)]
    prompts = [("chat", 0, (1,)), ("chat", 1, (2,)), ("code", 0, (3,))]
    held = cast(Any, SimpleNamespace(prompts=lambda: prompts, engines=lambda: arms))
    plant_in(held, "host=0.5")
    plant_in(held, "host=0.5@ngram#1, draft=1~code")
    plant_in(held, "pause=2")
    plant_in(held, "host=1#2~chat")
    assert given == [
        (two, Plant("host", 0.5), None),
        (two, Plant("host", 0.5, "ngram", 1), {(1,), (3,)}),
        (two, Plant("draft", 1.0, None, None, "code"), {(3,)}),
        (one, Plant("pause", 2.0), None),
        (two, Plant("pause", 2.0), None),
        (two, Plant("host", 1.0, None, 2, "chat"), {(2,)}),
    ]
    given.clear()
    shared = cast(Any, SimpleNamespace(prompts=lambda: prompts, engines=lambda: [(arms[0][0], one), (arms[1][0], one)]))
    plant_in(shared, "forward=0.1,host=0.1")
    assert [(engine, planted.kind) for engine, planted, _ in given] == [(one, "forward"), (one, "host")]
    for text in ("host=1@other", "host=1#3", "host=1~poems", "host=1#2~code"):
        with pytest.raises(GateError) as refused:
            plant_in(held, text)
        assert str(refused.value) == (
            f"planting {text!r} would slow down nothing: no such draft, prompt or workload is in the run"
        )


def test_a_plant_that_cannot_be_meant_is_refused() -> None:
    kinds = "host, draft, K/V, admit, observe, acceptance, forward, pause"
    for text in ("x=1", "host", "host=x", "host=1@", "=1"):
        with pytest.raises(GateError) as refused:
            Plant.of(text)
        assert str(refused.value) == (
            f"cannot plant {text!r}; expected KIND=AMOUNT@DRAFT#PROMPT~WORKLOAD, with a kind of {kinds}"
        )
    for text in ("forward=1@ngram", "pause=1#1", "pause=1~chat"):
        with pytest.raises(GateError) as refused:
            Plant.of(text)
        kind = text.partition("=")[0]
        assert str(refused.value) == f"cannot plant {text!r}: {kind} strikes every row; expected KIND=AMOUNT alone"
    assert Plant.of(" host=0.06@ngram(n=3)#12~my text ") == Plant("host", 0.06, "ngram(n=3)", 12, "my text")
    plain = SimpleNamespace(target=None, draft=None)
    for kind in plants.OF_A_DRAFT:
        with pytest.raises(GateError) as refused:
            plant(cast(Any, plain), Plant(kind, 1.0))
        assert str(refused.value) == f"cannot plant {kind} in plain decoding: it has no draft"
