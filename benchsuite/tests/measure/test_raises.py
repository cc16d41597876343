"""A peer, a draft, a policy, a controller or a judge that raises, whatever and whenever, costs its own row."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from benchsuite.judge.judgement import OutputJudge
from benchsuite.measure.arms import Arm
from benchsuite.measure.plan import MeasuringPlan
from benchsuite.measure.session import Bench
from benchsuite.tests.rig import SETTING, pairs_in_turn
from specdec_plugins.controllers.adaptive import Adaptive
from specdec_plugins.drafts.suffix import Suffix
from specdec_plugins.engines.transformers_prompt_lookup import TransformersPromptLookup
from specdec_plugins.policies.typical import Typical


class Odd(Exception):
    """What no one catches by its name."""

    def __str__(self) -> str:
        return "no sentence of ours"


LOOKUP = Arm(SETTING, peer="transformers_prompt_lookup(k=3)")
SUFFIX = Arm(SETTING, draft="suffix", policy="match", k=3)
TYPICAL = Arm(SETTING, draft="ngram", policy="typical", k=3)
ADAPTIVE = Arm(SETTING, draft="ngram", policy="match", controller="adaptive", k=3)
OTHERS = [Arm(SETTING), Arm(SETTING, draft="ngram", policy="match", k=3), Arm(SETTING, peer="transformers")]

PLACES = [
    pytest.param(arm, owner, name, id=f"{owner.__name__}-{name}")
    for arm, owner, names in (
        (LOOKUP, TransformersPromptLookup, ("__init__", "described", "conditions", "warm_up", "generate")),
        (SUFFIX, Suffix, ("__init__", "admit", "continuations", "release", "forget", "info")),
        (TYPICAL, Typical, ("__init__", "contract", "accept")),
        (ADAPTIVE, Adaptive, ("__init__", "next_k")),
    )
    for name in names
]


def raising(instead: Callable[..., Any], error: type[BaseException]) -> Callable[..., Any]:
    """A function that raises, with the signature of the one that it stands for: options are read from it."""

    @functools.wraps(instead)
    def raises(*_: object, **__: object) -> Any:
        raise error

    return raises


def measured_rows(bench: Bench, arms: list[Arm]) -> dict[Arm, Any]:
    bench.prepare(arms)
    return {arm: bench.row(arm, lambda what: None) for arm in arms}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arm", "owner", "name", "error"), pairs_in_turn(PLACES, [RuntimeError, SystemExit, Odd, SystemExit])
)
def test_what_a_plugin_raises_costs_its_own_row(
    arm: Arm, owner: type, name: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, raising(getattr(owner, name), error))
    bench = Bench(MeasuringPlan(prompts=1))
    rows = measured_rows(bench, [OTHERS[0], arm, *OTHERS[1:]])
    assert "could not be measured" in (rows[arm].failure or ""), rows[arm].failure
    assert (rows[arm].info["failed"], rows[arm].info["speedup"]) == ("crashed", None)
    assert [rows[one].failure for one in OTHERS] == [None] * 3
    bench.close()
    assert {row.arm for row in bench.results().rows} >= {arm, *OTHERS}


@pytest.mark.slow
def test_an_engine_that_cannot_be_closed_costs_nothing_that_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TransformersPromptLookup, "close", raising(TransformersPromptLookup.close, Odd))
    bench = Bench(MeasuringPlan(prompts=1))
    rows = measured_rows(bench, [*OTHERS, LOOKUP])
    bench.close()
    assert [row.failure for row in rows.values()] == [None] * 4
    assert any("could not be closed: Odd: no sentence of ours" in line for line in bench.said)


@pytest.mark.slow
def test_a_judge_that_raises_costs_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OutputJudge, "judge", raising(OutputJudge.judge, Odd))
    bench = Bench(MeasuringPlan(prompts=1, judge="tiny"))
    rows = measured_rows(bench, OTHERS)
    assert [row.failure for row in rows.values()] == [None] * 3
    assert sum("was not judged: no sentence of ours" in line for line in bench.said) == len(bench.results().rows)
