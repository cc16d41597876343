"""The parts of a planted slowdown, one by one: what is wasted when, which proposals are rejected, in which run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from benchsuite.gate import plants
from benchsuite.gate.plants import Plant, plant
from benchsuite.gate.record import GateError
from specdec.messages import Verdict, Window


def _engine(draft: Any = None, **more: Any) -> Any:
    """An engine whose parts only note their calls."""
    calls = list[Any]()
    arena = SimpleNamespace(
        commit=lambda *given: calls.append("commit"),
        keys=[SimpleNamespace(clone=lambda place=place: calls.append(("clone", place))) for place in range(2)],
    )
    target = SimpleNamespace(
        device=torch.device("cpu"),
        arena=lambda *given: ("arena", *given),
        forward=lambda *given: calls.append(("forward", *given)),
    )
    made = {"target": target, "draft": draft, "arena": arena, "stats": object(), "calls": calls}
    return SimpleNamespace(**made, run=lambda requests: requests, read=lambda: calls.append("read"), **more)


def _draft(calls: list[str]) -> Any:
    names = ("propose", "observe", "admit")
    return SimpleNamespace(**{name: lambda name=name: calls.append(name) for name in names})


@pytest.fixture
def plant_time(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, in a list, which passes only where a test says so."""
    now = [100.0]
    monkeypatch.setattr(plants, "perf_counter", lambda: now[0])
    return now


def test_only_what_a_draft_does_needs_a_draft() -> None:
    for kind in ("draft", "admit", "observe", "acceptance"):
        with pytest.raises(GateError) as refused:
            plant(_engine(), Plant(kind, 1.0))
        assert str(refused.value) == f"cannot plant {kind} in plain decoding: it has no draft"
    for kind in ("host", "K/V", "forward", "pause"):
        plant(_engine(), Plant(kind, 1.0))
    assert (plants.OF_A_DRAFT, plants.OF_ALL, plants.KINDS) == (
        ("draft", "admit", "observe", "acceptance"),
        ("forward", "pause"),
        ("host", "draft", "K/V", "admit", "observe", "acceptance", "forward", "pause"),
    )


SLOWED = [("host", "read"), ("draft", "propose"), ("K/V", "commit"), ("observe", "observe")]


@pytest.mark.parametrize(("kind", "name"), SLOWED)
def test_a_fraction_of_a_step_is_wasted_in_one_part_alone(
    kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[tuple[Any, ...]]()
    monkeypatch.setattr(plants, "_slow", lambda *given: made.append(given))
    monkeypatch.setattr(plants, "_lengthen", lambda *given: pytest.fail("another part is slowed"))
    monkeypatch.setattr(plants, "_reject", lambda *given: pytest.fail("proposals are rejected"))
    engine = _engine(_draft([]))
    plant(engine, Plant(kind, 0.25), {(1,)})
    [(slowed, run, owner, part, fraction, waste)] = made
    owners = {"host": engine, "draft": engine.draft, "K/V": engine.arena, "observe": engine.draft}
    assert (slowed is engine, owner is owners[kind], part, fraction) == (True, True, name, 0.25)
    assert (run.chosen, run.first_s) == (False, 0.0)
    waste()
    if kind == "draft":
        [(called, arena, window, rows, capacity)] = engine.calls
        assert (called, arena, rows, capacity) == ("forward", ("arena", 1, 64, 1), slice(0, 1), 0)
        assert window.tokens.tolist() == [[0]]
        assert window.tokens.dtype == torch.int64
    else:
        assert engine.calls == ([("clone", 0), ("clone", 1)] if kind == "K/V" else [])


@pytest.mark.parametrize(("kind", "wasted"), [("forward", [0.0, 0.75]), ("pause", [0.25, 0.25])])
def test_a_slowdown_of_all_rows_lengthens_the_targets_forward(
    kind: str, wasted: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[tuple[Any, ...]]()
    monkeypatch.setattr(plants, "_lengthen", lambda *given: made.append(given))
    engine = _engine()
    plant(engine, Plant(kind, 0.25))
    [(owner, name, seconds)] = made
    assert (owner is engine.target, name) == (True, "forward")
    assert [seconds(0.0), seconds(3.0)] == wasted


def _completed(*times: float) -> Any:
    return SimpleNamespace(times=times)


def _asked(*prompts: tuple[int, ...]) -> list[Any]:
    return [SimpleNamespace(prompt=prompt) for prompt in prompts]


def test_a_run_is_chosen_by_its_prompts_and_notes_its_earliest_first_token() -> None:
    done = [_completed(3.0, 9.0), _completed(2.0, 1.0)]
    engine = SimpleNamespace(run=lambda requests: done)
    run = plants._Run(cast(Any, engine), {(1,), (2,)})
    assert (run.chosen, run.first_s) == (False, 0.0)
    for prompts, chosen in (([(3,), (2,)], True), ([(3,)], False), ([(1,)], True), ([(3,), (4,)], False)):
        assert engine.run(_asked(*prompts)) is done
        assert (run.chosen, run.first_s) == (chosen, 2.0)
    every = plants._Run(cast(Any, engine), None)
    assert every.chosen
    engine.run(_asked((9,)))
    assert every.chosen


def test_admitting_wastes_a_fraction_of_the_last_runs_first_token_and_only_in_a_chosen_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = list[tuple[Any, ...]]()
    monkeypatch.setattr(plants, "_lengthen", lambda *given: made.append(given))
    engine = _engine(_draft([]))
    engine.run = lambda requests: [_completed(4.0, 5.0)]
    plant(engine, Plant("admit", 0.5), {(1,)})
    [(owner, name, seconds)] = made
    assert (owner is engine.draft, name) == (True, "admit")
    assert seconds(7.0) == 0.0
    engine.run(_asked((1,)))
    assert seconds(7.0) == 2.0
    engine.run(_asked((2,)))
    assert seconds(7.0) == 0.0


def test_the_first_run_of_all_prompts_wastes_nothing_when_it_admits(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[tuple[Any, ...]]()
    monkeypatch.setattr(plants, "_lengthen", lambda *given: made.append(given))
    plant(_engine(_draft([])), Plant("admit", 0.5))
    assert made[0][2](7.0) == 0.0


def test_what_is_wasted_in_excess_is_left_out_of_the_next_call(plant_time: list[float]) -> None:
    wasted = list[float]()

    def waste() -> None:
        wasted.append(plant_time[0])
        plant_time[0] += 0.75

    engine, running = SimpleNamespace(stats=object()), SimpleNamespace(chosen=True)
    owner = SimpleNamespace(work=lambda *given, **named: (given, named))
    plants._slow(cast(Any, engine), cast(Any, running), owner, "work", 0.5, waste)

    def after(seconds: float) -> int:
        before = len(wasted)
        plant_time[0] += seconds
        assert owner.work(1, a=2) == ((1,), {"a": 2})
        return len(wasted) - before

    assert after(5.0) == 0  # the first return of a run
    assert after(2.0) == 2  # 1 s to waste: 1.5 s are
    assert after(2.0) == 1  # 1 s more, less 0.5 s: 0.75 s are
    assert after(2.0) == 1  # 1 s more, less 0.25 s: exactly 0.75 s
    assert after(0.0) == 0
    running.chosen = False
    assert after(9.0) == 0
    running.chosen = True
    assert after(1.5) == 1
    engine.stats = object()
    assert after(9.0) == 0  # another run
    assert after(1.5) == 1


def _rejected(fraction: float, *steps: list[int]) -> list[tuple[Any, ...]]:
    """Paths, numbers and next tokens of steps that accepted so many tokens, once a fraction of these is rejected.

    Tokens of a window are 10, 11, 12, …, and what the policy would emit next is 99.
    """
    accepted = list[int]()

    def accept(logits: Any, window: Any, context: Any) -> Verdict:
        width = window.tokens.shape[1]
        path = torch.full((len(accepted), width), -1)
        for row, count in enumerate(accepted):
            path[row, : count + 1] = torch.arange(count + 1)
        return Verdict(path, torch.tensor(accepted), torch.full((len(accepted),), 99))

    engine, running = SimpleNamespace(policy=SimpleNamespace(accept=accept)), SimpleNamespace(chosen=True)
    plants._reject(cast(Any, engine), cast(Any, running), fraction)
    found = []
    for step in steps:
        accepted[:] = step
        window = SimpleNamespace(tokens=10 + torch.arange(4).repeat(len(step), 1))
        verdict = engine.policy.accept(None, cast(Window, window), None)
        found.append((verdict.path.tolist(), verdict.num_accepted.tolist(), verdict.next.tolist()))
    running.chosen = False
    accepted[:] = [3]
    verdict = engine.policy.accept(None, cast(Window, SimpleNamespace(tokens=torch.zeros(1, 4))), None)
    assert (verdict.path.tolist(), verdict.num_accepted.tolist(), verdict.next.tolist()) == ([[0, 1, 2, 3]], [3], [99])
    return found


def test_the_last_accepted_token_is_the_next_one_of_a_row_that_loses_it() -> None:
    assert _rejected(1.0, [3], [1], [0]) == [
        ([[0, 1, 2, -1]], [2], [13]),
        ([[0, -1, -1, -1]], [0], [11]),
        ([[0, -1, -1, -1]], [0], [99]),  # some are due, and none is there
    ]


def test_a_token_is_rejected_as_soon_as_a_whole_one_is_due_and_the_rest_is_carried() -> None:
    numbers = [(kept, following) for _, kept, following in _rejected(0.25, [2], [2], [3], [1], [1], [1])]
    assert numbers == [
        ([2], [99]),  # 0.5 due
        ([1], [12]),  # exactly 1 due
        ([3], [99]),  # 0.75
        ([0], [11]),  # 1
        ([1], [99]),
        ([1], [99]),
    ]
    both = _rejected(0.5, [1, 3], [2, 2])
    assert [(kept, following) for _, kept, following in both] == [([1, 2], [99, 13]), ([1, 1], [12, 12])]
