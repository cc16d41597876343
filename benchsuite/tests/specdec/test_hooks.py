"""The five hooks: what their pages say, and that each does what it says."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from benchsuite.conformance.models.families import build_model
from benchsuite.conformance.models.tiny import prompts
from specdec import (
    Context,
    Controller,
    Draft,
    Engine,
    Env,
    Generation,
    Peer,
    PeerEnv,
    Registry,
    Request,
    SamplingParams,
    Verdict,
    Window,
    catalog,
    hookimpl,
    hookspecs,
    installed,
)
from specdec.assembly import Assembly
from specdec.model import ArenaModel
from specdec.stats import Stats
from specdec_kernels import reference
from specdec_plugins.controllers import fixed
from specdec_plugins.drafts import garbage
from specdec_plugins.policies import match

HOOKS = [name for name in vars(hookspecs) if name.startswith("specdec_register_")]
PAGE = Path(__file__).parents[3] / "docs" / "write-a-plugin.md"


def test_the_hooks_are_those_of_the_registry() -> None:
    assert sorted(HOOKS) == sorted(installed.HOOKS.values())


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_says_when_it_is_called_who_wins_what_is_an_error_and_since_when(hook: str) -> None:
    text = inspect.getdoc(getattr(hookspecs, hook)) or ""
    for expected in (r"^Register .*\.$", r"^Called once", r"Every implementation is called", r":param register:"):
        assert re.search(expected, text, re.MULTILINE), f"{hook} does not say {expected!r}"
    for expected in (r"^Errors: ", r"^Since \d"):
        assert re.search(expected, text, re.MULTILINE), f"{hook} has no paragraph {expected!r}"


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_has_its_signature_and_a_paragraph_in_the_docs(hook: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    signature = f"def {hook}{inspect.signature(getattr(hookspecs, hook))}".replace("'", "")
    assert signature in page
    prose = re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE)
    assert [part for part in prose.split("\n\n") if f"`{hook}`" in part], f"no paragraph of {PAGE.name} names {hook}"


def test_every_hook_has_a_test_of_its_name() -> None:
    tree = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    tests = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert {f"test_{hook}" for hook in HOOKS} <= tests


def engine_with(
    hook: str,
    implementation: Callable[[Any], None],
    *,
    draft: str = "garbage",
    policy: str = "match",
    controller: str = "fixed",
    backend: str = "auto",
) -> Engine:
    """An engine over a tiny target, after one request, from a few built-in plugins and one more."""
    third = SimpleNamespace(**{hook: hookimpl(implementation)})
    built_in = {"reference": reference, "garbage": garbage, "match": match, "fixed": fixed}
    registry = Registry({"third": third, **built_in})
    target = ArenaModel(build_model("llama"), registry.backend(backend))
    build = Assembly(registry, target, catalog.byte_tokenizer(), max_rows=1, max_length=128)
    engine = build.engine(draft, policy, controller)
    engine.run([Request(0, prompts(1)[0], SamplingParams(max_new_tokens=12))])
    return engine


class Last(Draft):
    """Proposes the pending token ``times`` times."""

    def __init__(self, env: Env, times: int = 1) -> None:
        self.times = times

    def propose(self, context: Context) -> Window:
        k = min(int(context.max_proposals_host.max()), self.times)
        return Window.chain(context.pending, context.pending[:, None].expand(-1, k), context.max_proposals.clamp(max=k))


@pytest.mark.slow
def test_specdec_register_drafts() -> None:
    def register_last(register: Any) -> None:
        register("last_two", "last(times=2)")  # an alias may come before what it stands for
        register("noise", "garbage")
        register("last", Last)

    for draft, most in (("last", 1), ("last(times=3)", 3), ("last_two", 2)):
        engine = engine_with("specdec_register_drafts", register_last, draft=draft)
        assert isinstance(engine.draft, Last)
        assert max(step.proposed for step in engine.stats.steps) == most
    assert isinstance(engine_with("specdec_register_drafts", register_last, draft="noise").draft, garbage.Garbage)


class Never(match.Match):
    """Keeps nothing: what plain decoding emits follows every window."""

    def accept(self, logits: Tensor, window: Window, context: Context) -> Verdict:
        root = replace(window, width=torch.ones_like(window.width))
        return super().accept(logits, root, context)


def test_specdec_register_policies() -> None:
    def register_never(register: Any) -> None:
        register("never", Never)

    engine = engine_with("specdec_register_policies", register_never, policy="never")
    assert isinstance(engine.policy, Never)
    assert engine.stats.counts["num_draft_tokens"] > 0
    assert engine.stats.counts["num_accepted_tokens"] == 0


class Alternating(Controller):
    """K and nothing, in turns."""

    k_option = "high"

    def __init__(self, env: Env, high: int = 2) -> None:
        self.high, self.calls = high, 0

    @property
    def max_k(self) -> int:
        return self.high

    def next_k(self, stats: Stats) -> int:
        self.calls += 1
        return self.high * (self.calls % 2)


@pytest.mark.slow
def test_specdec_register_controllers() -> None:
    def register_alternating(register: Any) -> None:
        register("alternating", Alternating)

    for text, high in (("alternating", 2), ("alternating(high=3)", 3), ("alternating(3)", 3)):
        engine = engine_with("specdec_register_controllers", register_alternating, controller=text)
        assert [step.k for step in engine.stats.steps][:4] == [high, 0, high, 0]


class Counting(reference.Reference):
    """The reference with a priority above it: every call that it takes is its own."""

    name, priority = "counting", 11

    def takes(self, op: str, *tensors: Any) -> bool:
        return op == "verify_prefix"


def test_specdec_register_backends() -> None:
    def register_counting(register: Any) -> None:
        register("counting", Counting)

    for backend in ("auto", "counting"):
        ran = engine_with("specdec_register_backends", register_counting, backend=backend).stats.ops
        assert ran["verify_prefix", "counting"] > 0
        assert ran["verify_prefix", "reference"] == 0
        assert ran["kv_append", "reference"] > 0


class CountingPeer(Peer):
    """Emits the numbers from ``first`` on, one a millisecond: an engine without a model."""

    def __init__(self, env: PeerEnv, first: int = 1) -> None:
        self.first = first

    def generate(self, requests: Any) -> list[Generation]:
        made = [tuple(range(self.first, self.first + request.params.max_new_tokens)) for request in requests]
        return [Generation(t, tuple((i / 1e3, 1) for i in range(len(t))), len(t) / 1e3) for t in made]

    def described(self) -> str:
        return "counted"


def test_specdec_register_engines() -> None:
    def register_counted(register: Any) -> None:
        register("from_seven", "counted(first=7)")
        register("counted", CountingPeer)

    third = SimpleNamespace(specdec_register_engines=hookimpl(register_counted))
    registry, cpu = Registry({"third": third}), torch.device("cpu")
    model = build_model("llama")
    env = PeerEnv("tiny", cpu, torch.float32, 64, 1, 1, lambda: model, catalog.byte_tokenizer())
    work = [Request(0, (1, 2), SamplingParams(max_new_tokens=3))]
    for text, tokens in (("counted", (1, 2, 3)), ("counted(first=4)", (4, 5, 6)), ("from_seven", (7, 8, 9))):
        assert registry.peer(text, env).generate(work)[0].tokens == tokens
