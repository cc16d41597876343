"""A run that is repeated for a check takes the windows of the run that is checked, also if a clock chose them."""

from __future__ import annotations

import itertools

import pytest

from benchsuite.conformance.models.tiny import requests
from benchsuite.conformance.priced import AtAnyPrice
from benchsuite.judge.sources import EngineSource, Recorded
from benchsuite.measure.arms import Arm
from benchsuite.measure.runners import EngineRunner
from benchsuite.tests.rig import SETTING, Make
from specdec import Context, Controller, Draft, Request, SamplingParams, Window
from specdec.assembly import Assembly
from specdec.interfaces import Env
from specdec.stats import Stats


class Restless(Controller):
    """Another K at each call in the process, as if by a clock."""

    deterministic = False

    def __init__(self) -> None:
        self._calls = itertools.count()

    @property
    def max_k(self) -> int:
        """Four."""
        return 4

    def next_k(self, stats: Stats) -> int:
        """0, 3, 1, 4, 2, 0 …"""
        return 3 * next(self._calls) % 5


class Tiring(Draft):
    """Proposes fewer tokens the more often it was asked since it last forgot."""

    def __init__(self) -> None:
        self._asked = 0

    def forget(self) -> None:
        """Be fresh."""
        self._asked = 0

    def propose(self, context: Context) -> Window:
        """The pending token, four times to once."""
        self._asked += 1
        proposals = context.pending[:, None].expand(-1, 4)
        return Window.chain(context.pending, proposals, context.max_proposals.clamp(max=1 + 3 // self._asked))


@pytest.fixture
def moved(assemble: Make) -> Assembly:
    """A tiny Llama with both of them."""

    def controller(env: Env) -> Controller:
        return Restless()

    def draft(env: Env) -> Draft:
        return Tiring()

    return assemble(extra=(("controller", "restless", controller), ("draft", "tiring", draft)))


def windows_of(source: EngineSource) -> list[tuple[int, int]]:
    """The width and the proposals of each step of the last run."""
    return [(step.width, step.proposed) for step in source.engine.stats.steps]


@pytest.mark.slow
def test_logits_are_those_of_the_windows_that_were_run(moved: Assembly) -> None:
    source, work = EngineSource(moved.engine("garbage", controller="restless")), requests(count=2)
    output = source.tokens(work)[1]
    windows, own = windows_of(source), source.engine.controller
    assert len(set(windows)) > 3
    logits = source.logits_at(work, work[1].id, len(output) - 1)
    assert logits is not None
    assert int(logits.argmax()) == output[-1]
    assert windows_of(source) == windows
    assert source.engine.controller is own
    source.tokens(work)
    assert windows_of(source) != windows, "the controller repeats by itself, and this shows nothing"


def test_an_arm_is_checked_with_the_windows_that_were_timed(moved: Assembly) -> None:
    """Its draft forgot before the timed run, and so it does before the one that repeats it; no run bears that time."""
    engine = moved.engine("tiring", controller="restless")
    runner, work = EngineRunner(Arm(SETTING, draft="tiring"), engine), requests(count=1)
    runner.forget()
    timed = runner.run(work)
    windows = windows_of(runner)
    runner.logits_at(work, work[0].id, 5)
    assert windows_of(runner) == windows
    assert timed.forgetting_s > 0
    assert runner.run(work).forgetting_s == 0
    assert windows_of(runner) != windows


@pytest.mark.parametrize("draft", ["suffix(earlier=False)", "ngram(n_min=1)"])
def test_a_run_at_prices_is_repeated_with_the_windows_that_it_had(draft: str, moved: Assembly) -> None:
    """Prices follow the clock, and what a draft holds for worth them follows what it has learned by then."""
    engine = moved.engine(draft, k=4)
    engine.controller = AtAnyPrice(4)
    source = EngineSource(engine)
    work = [Request(0, (5, 6, 7, 5, 6, 7, 5), SamplingParams(max_new_tokens=40))]
    output = source.tokens(work)[0]
    windows = windows_of(source)
    assert len({proposed for _, proposed in windows}) > 2
    assert source.logits_at(work, 0, len(output) - 1) is not None
    assert windows_of(source) == windows


def test_after_the_steps_that_were_recorded_nothing_is_proposed() -> None:
    run, stats = (Stats(None) for _ in range(2))  # type: ignore[arg-type]
    run.chosen = [3, 0]
    controller = Recorded(run, 4)
    found = []
    for _ in range(3):
        found.append(controller.next_k(stats))
        stats.steps.append(None)  # type: ignore[arg-type]
    assert (found, controller.max_k) == ([3, 0, 0], 4)
