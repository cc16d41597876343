"""Which engines of a run a text of plants slows down, and for which prompts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchsuite.gate import plants
from benchsuite.gate.plants import Plant, plant_in
from benchsuite.gate.record import GateError


def test_a_plant_is_for_the_draft_prompt_and_workload_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[Any, Plant, Any]] = []
    monkeypatch.setattr(plants, "plant", lambda engine, planted, chosen: given.append((engine, planted, chosen)))
    one, two = SimpleNamespace(target=object()), SimpleNamespace(target=object())
    plain, ngram = SimpleNamespace(draft=None), SimpleNamespace(draft="ngram")
    prompts = [("chat", 0, (1,)), ("chat", 1, (2,)), ("code", 0, (3,))]
    held = cast(Any, SimpleNamespace(prompts=lambda: prompts, engines=lambda: [(plain, one), (ngram, two)]))
    for text in ("host=0.5", "host=0.5@ngram#1, draft=1~code", "pause=2", "host=1#2~chat"):
        plant_in(held, text)
    assert given == [
        (two, Plant("host", 0.5), None),
        (two, Plant("host", 0.5, "ngram", 1), {(1,), (3,)}),
        (two, Plant("draft", 1.0, None, None, "code"), {(3,)}),
        (one, Plant("pause", 2.0), None),
        (two, Plant("pause", 2.0), None),
        (two, Plant("host", 1.0, None, 2, "chat"), {(2,)}),
    ]
    given.clear()
    shared = cast(Any, SimpleNamespace(prompts=lambda: prompts, engines=lambda: [(plain, one), (ngram, one)]))
    plant_in(shared, "forward=0.1,host=0.1")
    assert [(engine, planted.kind) for engine, planted, _ in given] == [(one, "forward"), (one, "host")]
    for text in ("host=1@other", "host=1#3", "host=1~poems", "host=1#2~code"):
        with pytest.raises(GateError, match="would slow down nothing: no such draft, prompt or workload"):
            plant_in(held, text)
