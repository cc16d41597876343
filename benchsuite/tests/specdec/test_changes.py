"""A plugin of each interface so far runs, or is refused with what changed and what to write."""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import specdec
from benchsuite.conformance.models.families import build_model
from benchsuite.conformance.models.tiny import requests
from specdec import Backend, Controller, Draft, Policy, Registry, SamplingParams, SpecdecError, catalog, interfaces
from specdec.assembly import Assembly
from specdec.changes import CHANGES, tells_change
from specdec.model import ArenaModel
from specdec.peer import Peer
from specdec_kernels import reference
from specdec_plugins.controllers import fixed
from specdec_plugins.policies import match, rejection

PAGE = Path(__file__).parents[3] / "docs" / "write-a-plugin.md"

FIRST = """
import torch
from specdec import Context, Draft, Window, hookimpl

class Uniform(Draft):
    def __init__(self, env, temperature=1.0):
        self.vocabulary = env.target.vocabulary

    def propose(self, context):
        k, root = int(context.max_proposals_host.max()), context.pending[:, None]
        logits = torch.zeros(context.rows, 1, self.vocabulary)
        drawn = [
            context.propose_token({processed}, context.length[:, None] + index{draw})
            for index in range(k)
        ]
        return Window.chain(context.pending, torch.cat(drawn, dim=1), context.max_proposals)

    def release(self, row{tokens}):
        pass

    def observe(self, window, verdict, hidden{own}):
        pass

@hookimpl
def specdec_register_drafts(register):
    register("uniform", Uniform)
"""
"""A draft as the first interface had it, but for what is filled in: it draws from a flat distribution."""

NOW = {
    "processed": "context.process(logits, Window.root(context))",
    "draw": "",
    "tokens": ", tokens",
    "own": ", own",
}
BEFORE = {
    "processed": "context.process(logits, torch.zeros_like(root) - 1, root)",
    "draw": ", draw=0",
    "tokens": "",
    "own": "",
}
"""What is filled in by the interface of 0.2, and by those before: ``own`` until 0.1, the rest until the first."""

CONTROLLER = """
from specdec import Controller, hookimpl

class Two(Controller):
    def __init__(self, env{k}):
        pass

    @property
    def max_k(self):
        return 2

    def next_k(self, stats):
        return 2 if not stats.steps or stats.steps[-1].accepted else 1

@hookimpl
def specdec_register_controllers(register):
    register("two", Two)
"""

POLICY = """
from specdec import Policy, Purpose, hookimpl

class Prefix(Policy):
    def __init__(self, env):
        pass

    def contract(self, params):
        return "exact" if params.temperature == 0 else "distribution"

    def accept(self, logits, window, context):
        position = context.length[:, None] + window.depth
        return context.ops.verify_prefix(window, context.choose(logits, position, Purpose.TARGET))

@hookimpl
def specdec_register_policies(register):
    register("prefix", Prefix)
"""

BACKEND = """
from specdec import hookimpl
from specdec_kernels.reference import Reference

class Mine(Reference):
    name, priority = "mine", 15

    def {op}:
        return super().{call}

@hookimpl
def specdec_register_backends(register):
    register("mine", Mine)
"""


def made_plugin(source: str, **filled: str) -> ModuleType:
    """The module of a source, executed."""
    module = ModuleType("theirs")
    exec(source.format(**filled) if filled else source, vars(module))
    return module


def engine_runs(*modules: ModuleType, draft: str = "uniform", policy: str = "match", controller: str = "fixed") -> None:
    """Assert that an engine of these plugins emits plain decoding's tokens, greedy and sampled."""
    given = {f"theirs{number}": module for number, module in enumerate(modules)}
    registry = Registry({**given, "reference": reference, "match": match, "rejection": rejection, "fixed": fixed})
    target = ArenaModel(build_model("llama"), registry.backend())
    build = Assembly(registry, target, catalog.byte_tokenizer(), max_rows=2, max_length=128)
    engine = build.engine(draft, policy, controller)
    for params in (SamplingParams(max_new_tokens=6), SamplingParams(max_new_tokens=6, temperature=1.0)):
        work = requests(params, 3)
        assert [done.tokens for done in engine.run(work)] == [build.plain(request) for request in work]
    assert engine.stats.counts["num_draft_tokens"] > 0


def test_a_draft_of_0_2_runs() -> None:
    engine_runs(made_plugin(FIRST, **NOW))


def test_a_controller_a_policy_and_a_backend_of_0_1_run() -> None:
    backend = made_plugin(BACKEND, op="linear(self, x, weight, bias, wide=False)", call="linear(x, weight, bias, wide)")
    modules = made_plugin(FIRST, **NOW), made_plugin(CONTROLLER, k=""), made_plugin(POLICY), backend
    engine_runs(*modules, policy="prefix", controller="two")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: made_plugin(FIRST, **{**NOW, "own": BEFORE["own"]}),
            "observe of the draft theirs.Uniform takes (self, window, verdict, hidden); expected (self, window, "
            "verdict, hidden, own): since 0.2 own says whether the window is what this draft's propose returned. "
            "Write: def observe(self, window: Window, verdict: Verdict, hidden: Tensor | None, own: bool) -> None:",
        ),
        (
            lambda: made_plugin(FIRST, **{**NOW, "tokens": BEFORE["tokens"]}),
            "release of the draft theirs.Uniform takes (self, row); expected (self, row, tokens): since 0.1 tokens is "
            "the prompt and output of the request. Write: def "
            "release(self, row: int, tokens: tuple[int, ...]) -> None:",
        ),
        (
            lambda: made_plugin(BACKEND, op="linear(self, x, weight, bias)", call="linear(x, weight, bias)"),
            "linear of the backend theirs.Mine takes (self, x, weight, bias); expected (self, x, weight, bias, wide): "
            "since 0.1 wide asks for the product in float32. Write: def linear(self, x: Tensor, weight: Weight, bias: "
            "Tensor | None, wide: bool = False) -> Tensor:",
        ),
        (
            lambda: made_plugin(BACKEND, op="decoder_layer(self, x, layer, turn, at)", call="silu_mul(x, x)"),
            "decoder_layer of the backend theirs.Mine is never called: since 0.1 all layers of a model are one call. "
            "Write: def decoder_layers(self, x, layers, turn, at)",
        ),
        (
            lambda: Registry({"mine": made_plugin(CONTROLLER, k=", k")}),
            "mine registers the controller 'two' with the signature two(env, k); expected two(env, **options) where "
            "every option has a default: since 0.1 K is one of the options, the one that the class attribute k_option "
            "names",
        ),
    ],
    ids=["observe", "release", "linear", "decoder_layer", "k"],
)
def test_a_plugin_of_an_earlier_interface_is_refused_with_what_changed(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(SpecdecError) as refused:
        make()
    assert str(refused.value) == said


@pytest.mark.parametrize(
    ("filled", "said"),
    [
        (
            {**NOW, "processed": BEFORE["processed"]},
            "Context.process was called otherwise than (logits, after) (too many positional arguments): since 0.1 "
            "after stands for parents and tokens: the window whose slots the logits follow, or anything with paths. "
            "Write: context.process(logits, window)",
        ),
        (
            {**NOW, "draw": BEFORE["draw"]},
            "Context.propose_token was called otherwise than (logits, position) (got an unexpected keyword argument "
            "'draw'): since 0.1 every step has new noise without a draw. Write: context.propose_token(logits, "
            "position)",
        ),
    ],
    ids=["process", "propose_token"],
)
def test_a_call_of_an_earlier_interface_says_what_changed(filled: dict[str, str], said: str) -> None:
    with pytest.raises(SpecdecError) as refused:
        engine_runs(made_plugin(FIRST, **filled))
    assert str(refused.value) == said


CALLS = [
    ("context.process(logits, parents, tokens)", "(logits, after): since 0.1 after stands for parents and tokens"),
    ("context.process(logits, parents=a, tokens=b)", "(logits, after): since 0.1 after stands for parents and tokens"),
    ("[context.process(a, b, c) for a in logits]", "(logits, after): since 0.1 after stands for parents and tokens"),
    ("context.propose_token(logits, position, 1)", "(logits, position): since 0.1 every step has new noise"),
    ("context.process(logits, window)", None),
    ("context.process(logits, after=window)", None),
    ("context.process(*logits)", None),
    ("context.process(**logits)", None),
    ("context.ops.process(logits, params, paths)", None),
    ("self.process(logits, parents, tokens)", None),
    ("other.process(logits, parents, tokens)", None),
]


@pytest.mark.parametrize("parameter", ["context", "context: Context", "context: 'specdec.Context'"])
@pytest.mark.parametrize(("call", "said"), CALLS, ids=[call for call, _ in CALLS])
def test_a_call_of_an_earlier_interface_is_refused_where_the_source_shows_it(
    call: str, said: str | None, parameter: str, tmp_path: Path
) -> None:
    source = f"""
        from specdec import Context, Draft

        class Mine(Draft):
            def propose(self, {parameter}):
                return self._drawn(context)

            def _drawn(self, {parameter}):
                return {call}
    """
    file = tmp_path / "mine.py"
    file.write_text(textwrap.dedent(source))
    code = compile(file.read_text(), str(file), "exec")
    if said is None:
        exec(code, {"__name__": "mine"})
        return
    with pytest.raises(SpecdecError) as refused:
        exec(code, {"__name__": "mine"})
    shown = call.strip("[]").partition(" for ")[0]
    assert str(refused.value).startswith(f"_drawn of the draft mine.Mine calls {shown}; expected {said}")


def test_a_context_of_another_kind_is_nobodys_concern(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    text = "from specdec import Policy\n\nclass Mine(Policy):\n"
    text += "    def _own(self, context: Mine, process: int): return context.process(1, 2, 3)\n"
    text += "    def _other(self, pool): return pool.process(1, 2, 3)\n"
    file.write_text(f"from __future__ import annotations\n{text}")
    exec(compile(file.read_text(), str(file), "exec"), {"__name__": "mine"})


def test_a_type_error_of_a_methods_own_stays_one() -> None:
    def process(context: object, logits: Any, after: Any) -> Any:
        return logits + after

    process.__qualname__ = "Context.process"
    told: Any = tells_change(process)
    assert told(None, 1, after=2) == 3
    with pytest.raises(TypeError, match="unsupported operand"):
        told(None, 1, "2")
    with pytest.raises(SpecdecError, match="since 0.1 after"):
        told(None, 1, parents=2, tokens=3)


@pytest.mark.parametrize(
    ("module", "name"),
    [key.rsplit(".", 1) for key in CHANGES if key.startswith("specdec.")],
)
def test_a_name_that_has_moved_says_where_it_is(module: str, name: str) -> None:
    change = CHANGES[f"{module}.{name}"]
    with pytest.raises(ImportError) as refused:
        exec(f"from {module} import {name}", {})
    assert str(refused.value) == f"{module} has no {name}: since {change.since} {change.says}. Write: {change.write}"
    if change.write.startswith("from "):
        exec(change.write, {})
    with pytest.raises(AttributeError, match="has no attribute 'nothing_of_this_name'"):
        getattr(importlib.import_module(module), "nothing_of_this_name")  # noqa: B009


@pytest.mark.parametrize("interface", [Draft, Policy, Controller, Backend, Peer], ids=lambda one: one.__name__)
def test_a_method_with_an_argument_less_or_more_is_refused_when_its_class_is_made(interface: Any) -> None:
    methods = [
        (name, inspect.signature(method))
        for name, method in vars(interface).items()
        if inspect.isfunction(method) and not name.startswith("_")
    ]
    assert methods
    for name, wanted in methods:
        parameters = [*wanted.parameters.values()]
        if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
            continue  # it is called with as many as an op has
        names = [f"a{number}" for number in range(len(parameters))]
        for taken in (names, [*names, "*more"], [*names, "more=None"], ["*given"]):
            assert type("New", (interface,), {name: eval(f"lambda {', '.join(taken)}: None")})
        for taken in (names[:-1], [*names, "more"], [*names[:-1], f"*, {names[-1]}"]):
            with pytest.raises(SpecdecError, match=rf"^{name} of the {interface.__name__.lower()} .*New takes \("):
                type("Old", (interface,), {"__qualname__": "New", name: eval(f"lambda {', '.join(taken)}: None")})


def test_the_page_lists_the_stable_names_and_each_is_there() -> None:
    page = PAGE.read_text(encoding="utf-8")
    [table] = re.findall(r"^\| stable names \| since \|\n\| -+ \| -+ \|\n((?:\|.*\n)+)", page, re.MULTILINE)
    listed = dict[str, str]()
    for line in table.splitlines():
        names, version = (cell.strip() for cell in line.strip("|").rsplit("|", 1))
        listed |= dict.fromkeys(re.findall(r"`([\w.]+)`", names), version)
    assert {*specdec.__all__} <= listed.keys()
    assert {*vars(specdec.hookspecs)} >= {name for name in listed if name.startswith("specdec_register_")}
    assert set(listed.values()) == {"0.1", "0.2"}
    for name in listed:
        home, _, last = name.rpartition(".")
        places = [importlib.import_module(home)] if home else [specdec, interfaces, specdec.hookspecs]
        assert any(hasattr(place, last) for place in places), name
