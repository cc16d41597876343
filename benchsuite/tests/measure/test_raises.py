"""A peer, a draft, a policy, a controller or a judge that raises, whatever and whenever, costs its own row."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchsuite.judge.judgement import OutputJudge
from benchsuite.measure.arms import Arm
from benchsuite.measure.plan import MeasuringPlan
from benchsuite.measure.session import Bench
from benchsuite.tests.rig import SETTING, pairs_in_turn
from specdec import SpecdecError, catalog
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


FACTORIES = [
    (LOOKUP, TransformersPromptLookup),
    (SUFFIX, Suffix),
    (TYPICAL, Typical),
    (ADAPTIVE, Adaptive),
]
"""Arms, each with the class whose factory is broken."""


class NoServer(SpecdecError):
    """A refusal: a sentence of its own."""

    def __str__(self) -> str:
        return "nothing listens there: start the server"


@pytest.mark.slow
@pytest.mark.parametrize(("arm", "owner"), FACTORIES, ids=lambda one: getattr(one, "__name__", ""))
@pytest.mark.parametrize(
    ("error", "said"),
    [(NoServer, "nothing listens there: start the server"), (ValueError, " could not be built: ValueError: ")],
)
def test_a_factory_that_refuses_costs_its_own_row_which_the_card_names(
    arm: Arm, owner: type, error: type[Exception], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with errors that the registry turns into a refusal: an engine raises ValueError where memory is short."""
    monkeypatch.setattr(owner, "__init__", raising(vars(owner)["__init__"], error))
    bench = Bench(MeasuringPlan(prompts=1))
    bench.prepare([*OTHERS, arm])
    assert [line for line in bench.card if line.startswith(f"not measured: {arm.strategy}: ") and said in line]
    rows = {one: bench.row(one, lambda what: None) for one in (*OTHERS, arm)}
    assert said in (rows[arm].failure or "")
    assert rows[arm].info["failed"] == "refused"
    assert [rows[one].failure for one in OTHERS] == [None] * 3


@pytest.mark.parametrize("beside", [[], [Arm(SETTING, peer="transformers")]], ids=["alone", "beside a peer"])
def test_a_run_that_is_made_for_nothing_else_is_refused_before_any_work(
    beside: list[Arm], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer stands in every table; the run is made for the draft."""
    monkeypatch.setattr(Suffix, "__init__", raising(Suffix.__init__, NoServer))
    with pytest.raises(NoServer):
        Bench(MeasuringPlan(prompts=1)).prepare([SUFFIX, *beside])
    bench = Bench(MeasuringPlan(prompts=1))
    bench.prepare([OTHERS[1], SUFFIX, *beside])
    assert any(line == f"not measured: {SUFFIX.strategy}: {NoServer()}" for line in bench.card)


@pytest.mark.parametrize("asked", ["missing", "check_options"])
def test_an_engine_that_raises_when_it_is_asked_whether_it_can_run_is_refused_by_name(
    asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TransformersPromptLookup, asked, classmethod(raising(TransformersPromptLookup.generate, Odd)))
    said = r"the peer 'transformers_prompt_lookup\(k=2\)' of .* could not be asked .*: Odd: no sentence of ours; leave"
    with pytest.raises(SpecdecError, match=said):
        Bench(MeasuringPlan(prompts=1)).prepare([replace(LOOKUP, peer="transformers_prompt_lookup(k=2)")])


@pytest.mark.slow
def test_an_engine_that_cannot_be_closed_costs_nothing_that_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TransformersPromptLookup, "close", raising(TransformersPromptLookup.close, Odd))
    bench = Bench(MeasuringPlan(prompts=1))
    rows = measured_rows(bench, [*OTHERS, LOOKUP])
    bench.close()
    assert [row.failure for row in rows.values()] == [None] * 4
    assert any("could not be closed: no sentence of ours (Odd, " in line for line in bench.said)


@pytest.mark.slow
def test_a_judge_that_raises_costs_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OutputJudge, "judge", raising(OutputJudge.judge, Odd))
    bench = Bench(MeasuringPlan(prompts=1, judge="tiny"))
    rows = measured_rows(bench, OTHERS)
    assert [row.failure for row in rows.values()] == [None] * 3
    assert sum("was not judged: no sentence of ours (Odd, " in line for line in bench.said) == len(bench.results().rows)


@pytest.mark.slow
def test_an_arm_that_failed_behind_its_first_prompt_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first output is there; a figure of it would be of another work than the other rows'."""
    run, seen = TransformersPromptLookup.generate, set[object]()

    def generate(self: TransformersPromptLookup, requests: Any) -> Any:
        seen.update(request.prompt for request in requests)
        if len(seen) > 1:
            raise Odd
        return run(self, requests)

    monkeypatch.setattr(TransformersPromptLookup, "generate", generate)
    bench = Bench(MeasuringPlan(prompts=2, judge="tiny"))
    rows = measured_rows(bench, [*OTHERS, LOOKUP])
    assert rows[LOOKUP].info["failed"] == "crashed"
    assert len(seen) == 2
    assert [rows[arm].info["judged_perplexity"] is None for arm in (*OTHERS, LOOKUP)] == [False] * 3 + [True]


@pytest.mark.slow
def test_a_peer_is_told_of_the_tiny_target_in_a_dry_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = list[str]()
    begin = TransformersPromptLookup.__init__

    @functools.wraps(begin)
    def noted(self: TransformersPromptLookup, env: Any, *more: Any, **named: Any) -> None:
        told.append(env.target)
        begin(self, env, *more, **named)

    monkeypatch.setattr(TransformersPromptLookup, "__init__", noted)
    catalog.read_config("tiny").save_pretrained(tmp_path)
    bare = replace(LOOKUP, setting=LOOKUP.setting.replaced(target=str(tmp_path)))
    Bench(MeasuringPlan(prompts=1, dry=True)).prepare([bare])
    assert told == ["tiny"]
