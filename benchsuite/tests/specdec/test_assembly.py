"""Engines built from names: what each factory is told, what each engine gets, what is shared, proved and timed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchsuite.conformance.models import families
from benchsuite.conformance.models.tiny import prompts, registry
from specdec import Request, SamplingParams, SpecdecError, Window, assembly, catalog
from specdec.assembly import Assembly
from specdec.calibration import Calibration
from specdec.exact import WIDTHS
from specdec.model import ArenaModel
from specdec.ranks import RankZeroDecides
from specdec.runtime import Eager, Graphed
from specdec.sharding import Sharding
from specdec_plugins.controllers.fixed import Fixed
from specdec_plugins.drafts.garbage import Garbage
from specdec_plugins.policies.match import Match


class ToldParts:
    """Factories that note the env they get."""

    def __init__(self) -> None:
        self.envs: dict[str, list[Any]] = {"draft": [], "policy": [], "controller": []}
        self.branching, self.asks = False, False

    def draft(self, env: Any) -> Garbage:
        self.envs["draft"].append(env)
        told_parts = self

        class Told(Garbage):
            branches = told_parts.branching

            def admit(self, row: int, request: Request, prompt: tuple[int, ...]) -> None:
                if told_parts.asks:
                    env.plain(request)
                    env.plain(request)
                super().admit(row, request, prompt)

        return Told(env)

    def policy(self, env: Any) -> Match:
        self.envs["policy"].append(env)
        return Match(env)

    def controller(self, env: Any, k: int = 3) -> Fixed:
        self.envs["controller"].append(env)
        return Fixed(env, k)


@pytest.fixture
def told_parts() -> ToldParts:
    return ToldParts()


def told_assembly(told_parts: ToldParts, rows: int = 2, length: int = 96, **more: Any) -> Assembly:
    """Engines over a tiny model in plain torch, with those factories as "told"."""
    found = registry()
    target = ArenaModel(families.build_model("llama"), found.backend("reference"))
    build = Assembly(found, target, catalog.byte_tokenizer(), max_rows=rows, max_length=length, **more)
    build.registry = type(found)({})
    told_parts.controller.__func__.k_option = "k"  # type: ignore[attr-defined]
    for kind, name, factory in (
        ("draft", "told", told_parts.draft),
        ("policy", "told", told_parts.policy),
        ("controller", "told", told_parts.controller),
        ("policy", "match", Match),
        ("controller", "fixed", Fixed),
        ("draft", "garbage", Garbage),
    ):
        build.registry.add(kind, name, factory, "a test")
    return build


def test_factories_are_told_the_engines_sizes_and_the_controller_decides_the_window(told_parts: ToldParts) -> None:
    build = told_assembly(told_parts, seed=5)
    engine = build.engine("told", "told", "told", 6, max_rows=1)
    assert {kind: len(envs) for kind, envs in told_parts.envs.items()} == {"draft": 1, "policy": 1, "controller": 1}
    for kind, [env] in told_parts.envs.items():
        assert (env.target, env.tokenizer, env.ops) == (build.target, build.tokenizer, build.target.ops)
        assert (env.max_rows, env.max_length, env.seed) == (1, 96, 5), kind
        assert env.max_window == (1 if kind == "controller" else 7)
        assert env.calibration is build.calibration
        assert env.runtime is engine.runtime
    assert isinstance(told_parts.envs["draft"][0].draft("garbage"), Garbage)
    assert isinstance(told_parts.envs["policy"][0].draft("garbage"), Garbage)
    with pytest.raises(SpecdecError) as refused:
        told_parts.envs["controller"][0].draft("garbage")
    assert str(refused.value) == "the draft 'garbage' can be built for an engine only; its window is not known yet"
    assert (engine.target, engine.ops, engine.tokenizer) == (build.target, build.target.ops, build.tokenizer)
    assert isinstance(engine.draft, Garbage)
    assert isinstance(engine.policy, Match)
    assert isinstance(engine.controller, Fixed)
    assert (engine.max_rows, engine.max_length, engine.max_window) == (1, 96, 7)
    assert (type(engine.runtime), engine.exact) == (Eager, False)
    told_parts.envs["draft"][0].draft("told")
    assert told_parts.envs["draft"][1].max_window == 7, "a draft of a draft has the same window"


def test_what_is_not_said_is_match_fixed_the_rows_of_all_and_seed_0(told_parts: ToldParts) -> None:
    build = told_assembly(told_parts)
    engine = build.engine("told")
    assert told_parts.envs["draft"][0].seed == 0
    assert (type(engine.policy), type(engine.controller), engine.controller.max_k) == (Match, Fixed, 4)
    assert (engine.max_rows, told_parts.envs["draft"][0].max_rows) == (2, 2)
    assert isinstance(build.calibration, Calibration)
    assert build.calibration.target is build.target
    assert build.engine(None).draft is None
    known = Calibration(build.target)
    given = told_assembly(ToldParts(), calibration=known)
    assert given.calibration is known


def test_each_engine_counts_what_its_own_draft_asks_of_plain_decoding(
    told_parts: ToldParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = told_assembly(told_parts)
    told_parts.asks = True
    work = [Request(i, prompt[:20], SamplingParams(max_new_tokens=5)) for i, prompt in enumerate(prompts(2))]
    built: list[Any] = []
    engine_of = build.engine

    def noted(*given: Any, **more: Any) -> Any:
        built.append((given, more))
        return engine_of(*given, **more)

    monkeypatch.setattr(build, "engine", noted)
    engine = engine_of("told")
    other = engine_of("told")
    first = [done.tokens for done in engine.run(work)]
    assert (engine.replayed(), other.replayed()) == (4, 0)
    assert built == [((None,), {"k": 0, "max_rows": 1})], "one engine decodes them all"
    assert build._replayer is not None
    assert (build._replayer.max_rows, build._replayer.max_window, build._replayer.controller.max_k) == (1, 1, 0)
    runs = build._replayer.stats
    other.run(work)
    assert (engine.replayed(), other.replayed()) == (4, 4)
    assert first == [build.plain(request) for request in work] == [build._replayed[request] for request in work]
    assert build._replayer.stats is runs, "what was decoded once is remembered"
    kept = Request(0, work[0].prompt, work[0].params, keep=True)
    assert build.plain(kept) == first[0]
    assert build._replayer.stats is runs, "another request's texts change nothing for it"


class CountingRecorder:
    """A recorder by its name."""

    name, runs = "counting", True


@pytest.mark.parametrize(
    ("graphs", "possible", "cut", "eager", "recorded"),
    [
        (True, True, False, False, True),
        (True, True, False, True, False),
        (True, True, True, False, False),
        (True, False, False, False, False),
        (False, True, False, False, False),
        (None, True, False, False, False),
    ],
)
def test_steps_are_recorded_where_that_is_asked_for_and_possible(
    graphs: bool | None,
    possible: bool,
    cut: bool,
    eager: bool,
    recorded: bool,
    told_parts: ToldParts,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(assembly, "records", lambda kind: kind == "cpu" and possible)
    monkeypatch.setattr(assembly, "CudaGraphs", CountingRecorder)
    monkeypatch.setattr("specdec.model.sharding_of", lambda model: Sharding(2, 1, ("MLP",), ()) if cut else None)
    more: Any = {} if graphs is None else {"graphs": graphs}
    build = told_assembly(told_parts, **more)
    engine = build.engine("told", eager=eager) if eager else build.engine("told")
    assert type(engine.runtime) is (Graphed if recorded else Eager)
    assert engine.runtime.name == ("counting" if recorded else "eager")
    assert told_parts.envs["draft"][0].runtime is engine.runtime
    own: Any = CountingRecorder()
    own.name = "own"
    found = build.engine("told", eager=True, recorder=own).runtime
    assert (type(found), found.name) == (Graphed, "own")
    assert getattr(found, "_ops", None) is build.target.ops


@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize("deterministic", [True, False])
def test_a_controller_that_reads_the_clock_is_asked_on_rank_0_alone_where_the_model_is_cut(
    cut: bool, joined: bool, deterministic: bool, told_parts: ToldParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = object() if joined else None
    monkeypatch.setattr(assembly, "joined_ranks", lambda: ranks)
    monkeypatch.setattr("specdec.model.sharding_of", lambda model: Sharding(2, 1, ("MLP",), ()) if cut else None)
    monkeypatch.setattr(Fixed, "deterministic", deterministic)
    controller = told_assembly(told_parts).engine("told").controller
    assert type(controller) is (RankZeroDecides if cut and joined and not deterministic else Fixed)
    assert controller.max_k == 4


def test_an_exact_engine_is_proved_once_for_its_sizes_and_draws_no_trees(
    told_parts: ToldParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    proved: list[Any] = []
    monkeypatch.setattr(assembly, "require_exact", lambda *given: proved.append(given))
    build = told_assembly(told_parts, exact=True)
    widest = max(WIDTHS)
    assert all(build.engine("told", k=k).exact for k in (1, 4, widest - 1))
    assert build.engine(None).exact
    assert proved == [(build.target, 2, widest)]
    assert build.engine("told", k=widest).exact
    assert build.engine("told", max_rows=1).exact
    assert proved[1:] == [(build.target, 2, widest + 1), (build.target, 1, widest)]
    told_parts.branching = True
    with pytest.raises(SpecdecError) as refused:
        build.engine("told")
    assert str(refused.value) == (
        "the draft 'told' proposes trees, whose nodes attend to cells in another order than single tokens do, so that "
        "sums are rounded otherwise; exact needs chains: choose a draft that proposes them, or leave out exact "
        "(--specdec-exact)"
    )
    assert not told_assembly(told_parts, exact=False).engine("told").exact
    assert len(proved) == 3


def test_a_factorys_time_ends_when_the_device_is_done(told_parts: ToldParts, monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[str] = []
    times = iter([10.0, 13.5])

    def clock() -> float:
        noted.append("clock")
        return next(times)

    build = told_assembly(told_parts)
    monkeypatch.setattr(assembly, "synchronize", lambda device: noted.append(f"waited for {device}"))
    monkeypatch.setattr(assembly, "time", type("Clock", (), {"perf_counter": staticmethod(clock)}))

    def built() -> str:
        noted.append("built")
        return "it"

    assert build._timed(built) == ("it", 3.5)
    assert noted == ["waited for cpu", "clock", "built", "waited for cpu", "clock"]


def test_a_window_of_an_assembled_engine_has_the_draft_s_proposals(told_parts: ToldParts) -> None:
    engine = told_assembly(told_parts, rows=1).engine("told", k=2)
    seen: list[Window] = []
    engine.trace = lambda context, window, *_: seen.append(window)
    engine.run([Request(0, (5, 6, 7), SamplingParams(max_new_tokens=6))])
    assert {window.tokens.shape[1] for window in seen} <= {1, 2, 3}
    assert max(window.tokens.shape[1] for window in seen) == 3
    assert torch.equal(seen[0].width, torch.tensor([3]))
