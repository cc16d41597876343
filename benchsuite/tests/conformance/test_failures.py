"""Checks of the kit that take long, given what they would find: how each failure is told."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from benchsuite import conformance
from benchsuite.conformance import faked
from benchsuite.conformance.claims import Failed
from benchsuite.conformance.models import families
from benchsuite.conformance.replayed import must_replay
from specdec import Engine, Request, SamplingParams
from specdec_kernels.build import BuildError
from specdec_kernels.reference import Reference
from specdec_plugins.controllers.fixed import Fixed

STRATEGY = "ngram under match, K = 3"
ATEN: Any = torch.ops.aten

FOUND: list[tuple[Exception | str, str]] = [
    (DataDependentOutputException(ATEN.item.default), "the host reads a number of the device: aten.item"),
    (DynamicOutputShapeException(ATEN.nonzero.default), "a shape follows numbers of the device: aten.nonzero"),
    (
        RuntimeError("two devices"),
        "it cannot be built or cannot step on fake tensors: two devices; if it loads a model",
    ),
    (TypeError("float64"), "it cannot be built or cannot step on fake tensors: float64; if it loads a model"),
    (ValueError("odd"), "it cannot be built or cannot step on fake tensors: odd; if it loads a model"),
    ("a copy that waits", "a copy that waits"),
]


@pytest.mark.parametrize(("found", "told"), FOUND, ids=lambda value: type(value).__name__)
def test_a_step_that_is_not_fit_for_a_gpu_is_told_by_what_it_would_do(
    found: Exception | str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def run(*given: Any, **named: Any) -> Any:
        asked.append((given, named))
        if isinstance(found, Exception):
            raise found
        return SimpleNamespace(wrong=lambda: found)

    monkeypatch.setattr(faked, "fake_run", run)
    params = SamplingParams(temperature=0.5)
    with pytest.raises(Failed) as failed:
        faked.must_fit_a_gpu("ngram", "qwen2", (), "ngram", "match", params, 3)
    claimed, measured, example = str(failed.value).strip("\n").split("\n")
    assert claimed == "  claimed:  steps with ngram are fit for a GPU"
    assert measured.startswith(f"  measured: {told}")
    assert example == f"  example:  {STRATEGY}"
    [(given, named)] = asked
    assert given == ("ngram", "match")
    assert (named["k"], named["params"], named["extra"]) == (3, params, ())
    assert named["config"].model_type == families.CONFIGS["qwen2"]().model_type
    assert named["rows"] > 1
    assert named["steps"] > 2, "two equal steps after a first"


def test_without_a_compiler_a_step_is_not_taken_and_a_step_without_fault_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(*given: Any, **named: Any) -> Any:
        raise BuildError("no compiler")

    monkeypatch.setattr(faked, "fake_run", run)
    with pytest.raises(pytest.skip.Exception, match="no device guard for fake tensors can be compiled: no compiler"):
        faked.must_fit_a_gpu("ngram", "llama", (), "ngram", "match", SamplingParams(), 3)
    monkeypatch.setattr(faked, "fake_run", lambda *given, **named: SimpleNamespace(wrong=lambda: None))
    faked.must_fit_a_gpu("ngram", "llama", (), "ngram", "match", SamplingParams(), 3)


WORK = [Request(4, (1, 2), SamplingParams()), Request(7, (3,), SamplingParams())]

REPLAYS: list[tuple[list[tuple[int, ...]], str | None]] = [
    ([(5, 6, 7), (8, 9)], None),
    ([(5, 6, 9), (8, 9)], "request 4 differs at token 2: "),
    ([(5, 6, 7), (9, 8)], "request 7 differs at token 0: "),
    ([(5, 6, 7), (8, 9, 1)], "request 7 differs at token 3: "),
    ([(5, 6), (8, 9)], "request 4 differs at token 2: "),
]


@pytest.mark.parametrize(("replayed", "told"), REPLAYS)
@pytest.mark.parametrize("text", ["ngram", "match"])
def test_a_replay_that_decodes_otherwise_is_told_by_its_request_and_token(
    replayed: list[tuple[int, ...]], told: str | None, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draft is run once before both, which then know the same; a policy is not."""
    runs: list[bool] = []

    def run(engine: Engine, work: Sequence[Request]) -> list[Any]:
        last = len(runs) == (2 if text == "ngram" else 1)
        runs.append(last)
        return [SimpleNamespace(tokens=tokens) for tokens in (replayed if last else REPLAYS[0][0])]

    monkeypatch.setattr(Engine, "run", run)
    if told is None:
        must_replay(text, "llama", (), "ngram", "match", WORK, 3)
        assert runs == ([False, False, True] if text == "ngram" else [False, True])
        return
    with pytest.raises(Failed) as failed:
        must_replay(text, "llama", (), "ngram", "match", WORK, 3)
    assert f"measured: {told}" in str(failed.value)
    assert str(failed.value).endswith(f"  example:  {STRATEGY}")


def test_a_replay_that_fails_or_counts_otherwise_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = itertools.count()

    def counting(engine: Engine, work: Sequence[Request]) -> list[Any]:
        engine.stats.counts["num_accepted_tokens"] = next(calls)
        return [SimpleNamespace(tokens=(1,)) for _ in work]

    monkeypatch.setattr(Engine, "run", counting)
    with pytest.raises(Failed, match="the tokens are the same and the counters are not"):
        must_replay("match", "llama", (), "ngram", "match", WORK, 3)

    def failing(engine: Engine, work: Sequence[Request]) -> list[Any]:
        if next(calls) % 2:
            raise RuntimeError("a part that reads cannot be recorded")
        return [SimpleNamespace(tokens=(1,)) for _ in work]

    calls = itertools.count()
    monkeypatch.setattr(Engine, "run", failing)
    with pytest.raises(Failed, match="can be recorded\n  measured: a part that reads cannot be recorded\n"):
        must_replay("match", "llama", (), "ngram", "match", WORK, 3)


class OwnNorm(Reference):
    """Runs one op, perhaps in half precision."""

    name, priority, half = "planted", 1, False

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
        return super().rms_norm(x.bfloat16().to(x.dtype) if self.half else x, weight, eps, offset)

    def takes(self, op: str, *tensors: Any) -> bool:
        return op == "rms_norm"


class HalfNorm(OwnNorm):
    """Runs it in half precision."""

    half = True


@pytest.mark.parametrize(
    ("backend", "claimed", "op", "told"),
    [
        (OwnNorm, ["rms_norm"], "rms_norm", None),
        (OwnNorm, ["rms_norm"], "accept", None),
        (HalfNorm, ["rms_norm"], "rms_norm", ("rms_norm of planted is the reference's", "errs by", "in torch.float32")),
        (OwnNorm, [], "rms_norm", ("planted does not run rms_norm", "it took the cases of rms_norm", "cases")),
        (OwnNorm, ["accept"], "accept", ("planted runs accept", "it took none of the cases of accept", "cases")),
    ],
)
def test_a_backend_that_errs_or_runs_what_it_does_not_claim_is_told_by_the_op(
    backend: type[Reference], claimed: list[str], op: str, told: tuple[str, str, str] | None
) -> None:
    check = conformance.backend(
        "planted", ops=claimed, factory=backend
    )().test_an_op_agrees_with_the_reference_and_runs_where_claimed
    if told is None:
        check(op)
        return
    with pytest.raises(Failed) as failed:
        check(op)
    for line, part in zip(str(failed.value).strip("\n").split("\n"), told, strict=True):
        assert part in line


class LessAgain(Fixed):
    """Asks for one proposal less after each three steps, and forgets nothing."""

    def __init__(self, env: Any, k: int = 4) -> None:
        super().__init__(env, k)
        self.asked = itertools.count()

    def next_k(self, stats: Any) -> int:
        return self.max_k - next(self.asked) // 3


class LessEach(Fixed):
    """Asks for one proposal less than the controller before it."""

    made = itertools.count()

    def __init__(self, env: Any, k: int = 4) -> None:
        super().__init__(env, k)
        self.number = next(LessEach.made)

    def next_k(self, stats: Any) -> int:
        return self.max_k - self.number


@pytest.mark.parametrize(
    ("controller", "told"),
    [
        (Fixed, None),
        (LessAgain, "K 4 in the first run, 3 in the second, after forget()"),
        (LessEach, "K 4 in the first run, 3 in a new engine"),
    ],
)
def test_a_controller_that_asks_otherwise_in_a_later_run_or_engine_is_told_by_both(
    controller: type[Fixed], told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(engine: Engine, work: Sequence[Request]) -> None:
        for _ in range(3):
            engine.controller.next_k(engine.stats)

    monkeypatch.setattr(Engine, "run", run)
    kit = conformance.controller("planted", factory=controller)()
    if told is None:
        kit.test_it_repeats_where_claimed("garbage")
        return
    with pytest.raises(Failed) as failed:
        kit.test_it_repeats_where_claimed("garbage")
    assert f"measured: {told}\n" in str(failed.value)
    assert str(failed.value).endswith("step 0 of requests by garbage")
