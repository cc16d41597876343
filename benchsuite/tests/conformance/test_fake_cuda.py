"""Every step on fake CUDA tensors reads once, mixes no devices, waits for no copy, and can be replayed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from transformers import LlamaConfig

from benchsuite.benches.kernels.shapes import PROCESSED
from benchsuite.conformance.guards import fake_cuda
from benchsuite.conformance.guards.fake_cuda import FakeRun
from benchsuite.conformance.guards.tape import shares_memory
from benchsuite.conformance.models import families, tiny
from benchsuite.engines.guests import known_guests
from benchsuite.judge.sources import EachRow
from benchsuite.tests.eagle3_heads import EAGLE3_HEAD
from benchsuite.tests.recorded_heads import recorded_head
from benchsuite.tests.rig import POLICIES, pairs_in_turn, slow_after, some_of
from benchsuite.workshop.gpu_day import stages
from benchsuite.workshop.machines.uneven_runs import Telling
from specdec import Context, Draft, SamplingParams, Window
from specdec.devices import HostCopy
from specdec.interfaces import Env
from specdec_plugins.drafts.draft_model import DEFAULT_SHARE

pytestmark = pytest.mark.fake_gpu

KERNELS = Path(__file__).parents[3] / "docs" / "kernels.md"
PAGE = KERNELS.read_text(encoding="utf-8")

SMOLLM2 = {**stages.LLAMA, **stages.SHAPES["smollm2-135m"]}
LAYERS: int = SMOLLM2["num_hidden_layers"]

DRAFTS = (
    *("ngram", "ngram(branches=2)", "suffix", "suffix(branches=2)", "garbage", "oracle(0.8)", "draft_model"),
    *("tree(beam=2, depth=2)", "medusa", "medusa(head_init=trained, beam=2)", "eagle", "eagle(head=trained)"),
    *("eagle(head=trained, beam=2, depth=2)", "custom_class(path='benchsuite.tests.vllm_rig:TheirLookup')"),
    *("eagle(head=trained, leaves=2)", "hybrid(sources='suffix, ngram, eagle(head=trained, leaves=2)')"),
    f"eagle3(head={EAGLE3_HEAD!r})",
    f"eagle3(head={EAGLE3_HEAD!r}, layers=1-0, beam=2, depth=2)",
    f"dflash(head={recorded_head('dflash/windows')!r}, max_draft=3)",
    f"dspark(head={recorded_head('dspark/rnn')!r}, max_draft=3)",
    f"mtp(head={recorded_head('mtp/speculators-llama')!r}, beam=2, depth=2)",
    f"peagle(head={recorded_head('peagle/llama')!r})",
    "hybrid(sources='suffix, ngram, eagle(head=trained)')",
    "hybrid(sources='suffix, ngram(branches=2), eagle(head=trained)', merge=True, slots=3)",
    "hybrid(sources='suffix, ngram, eagle(head=trained)', extend=True, slots=3)",
)
CONTROLLERS = ("fixed", "adaptive", "goodput", "budget")
TURNS = tuple(itertools.product(CONTROLLERS, (0.0, 1.0)))
"""Controllers and temperatures."""

SEARCHES = ("suffix", "custom_class", "hybrid")
"""Drafts that find another number of tokens at each step."""


def _pairs() -> Iterator[Any]:
    """Each draft with one or two of the policies that take its windows; with the others under --specdec-deep."""
    fitting = [
        one
        for one in pairs_in_turn(DRAFTS, POLICIES, groups=6)
        if tiny.policy_named(one.values[1]).trees or "=2" not in one.values[0]
    ]
    for index, one in enumerate(sorted(fitting, key=lambda one: len(one.marks))):
        # 5 has no factor in common with 6, so that all take their turns.
        yield pytest.param(*one.values, *TURNS[5 * index % len(TURNS)], marks=one.marks)


BATCHES = [
    *((draft, "tree_rejection", "gpu") for draft in DRAFTS),
    *some_of(3, [("garbage", policy, "reference") for policy in POLICIES]),
]
"""Each draft once over the GPU's backends, and policies over the reference, which makes many more launches."""


def must_hold(found: FakeRun) -> None:
    """No wait, no mixed devices, and each step's ops are those of its neighbour of equal width."""
    assert found.wrong() is None


def taken(draft: str, policy: str, controller: str, temperature: float, **given: Any) -> FakeRun:
    """Steps of the smallest model that the draft can do with."""
    config = families.CONFIGS["llama"]()
    config.num_hidden_layers = (
        2 if draft.startswith(("draft_model", "tree", "dflash", "dspark", "eagle3", "peagle")) else 1
    )
    params = SamplingParams(temperature=temperature, top_k=40, top_p=0.9, max_new_tokens=60)
    k = 4 if "=2" in draft else 2  # a tree of two times two; a chain of more than one
    found = fake_cuda.fake_run(draft, policy, controller, k=k, params=params, config=config, **given)
    compared = list(found.twins()) or draft.startswith(SEARCHES) or controller != "fixed"
    assert compared, "no two steps were compared"
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("draft", "policy", "controller", "temperature"), [*_pairs()])
def test_a_step_reads_once_waits_nowhere_and_can_be_replayed(
    draft: str, policy: str, controller: str, temperature: float
) -> None:
    must_hold(taken(draft, policy, controller, temperature, backends="gpu", steps=3))


@pytest.mark.slow
@pytest.mark.parametrize(("draft", "policy", "backends"), BATCHES)
def test_rows_end_and_others_enter_and_nobody_waits(draft: str, policy: str, backends: str) -> None:
    """The first of three requests ends, a fourth takes its row, and three equal steps follow."""
    must_hold(taken(draft, policy, "fixed", 1.0, rows=3, steps=5, enters=True, backends=backends))


class ReadingEachRow(EachRow):
    """Reads confidences, so that drafts compute them."""

    reads_confidence = True


@pytest.mark.slow
@pytest.mark.parametrize("draft", ["telling", "draft_model"])
def test_rows_of_different_k_and_a_confidence_are_read_with_the_rest(draft: str) -> None:
    """K goes to the device in one copy that nobody waits for, and the confidence comes back with the one read."""
    extra: tuple[tiny.Extra, ...] = (
        ("draft", "telling", lambda env: Telling(env, rate=1.0)),
        ("controller", "unlike", lambda env: ReadingEachRow(4, lambda row: 1 + row.request % 3)),
    )
    found = fake_cuda.fake_run(draft, controller="unlike", rows=3, steps=6, enters=True, extra=extra)
    assert [*found.twins()], "no two steps were compared"
    must_hold(found)


@pytest.mark.slow
def test_requests_with_everything_on_are_admitted_without_waiting() -> None:
    params = replace(PROCESSED["every"], max_new_tokens=60, min_new_tokens=3, logprobs=2)
    must_hold(fake_cuda.fake_run("garbage", params=params, rows=2, steps=5, enters=True))


@pytest.mark.slow
@pytest.mark.parametrize("family", slow_after(1, ["smollm2", "qwen3", "gemma2", "gemma3", "gpt2", "mistral"]))
def test_a_plain_step_of_each_family_can_be_replayed(family: str) -> None:
    must_hold(fake_cuda.fake_run(None, config=families.CONFIGS[family]()))


def test_a_tensor_of_numbers_is_made_on_the_device_that_is_asked_for() -> None:
    with torch.device("cpu"):
        torch.zeros(1)  # torch remembers, at the first such call, which functions make tensors
    with fake_cuda.fake_cuda():
        assert torch.tensor([1], device="cuda").device.type == "cuda"
        assert torch.tensor([1]).device.type == "cpu"
        with torch.device("cuda"):
            assert torch.tensor([]).device.type == "cuda"


def test_every_built_in_is_among_the_pairs() -> None:
    """Guests are left out: their kits take such steps with stand-ins of their packages, or claim ``fakes=False``."""
    registry = tiny.registry()
    for kind, given in (("draft", DRAFTS), ("policy", POLICIES), ("controller", CONTROLLERS)):
        tried = {registry.parse(kind, text)[0].factory for text in given}
        due = set(registry.names(kind)) - (known_guests().keys() if kind == "draft" else set())
        assert tried == {registry.parse(kind, name)[0].factory for name in due}


BUDGET = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.partition("| strategy | draft ")[2].partition("\n\n")[0].splitlines()[2:]
]


def launches(strategy: str, layers: int) -> Sequence[int]:
    """The numbers of a row of the table, of a model of SmolLM2's shape with so many layers."""
    draft, _, policy = strategy.strip("`").rpartition(" ")
    draft = draft.replace("draft_model", f"draft_model(layers={LAYERS // DEFAULT_SHARE})")
    params = SamplingParams(temperature=0.0 if policy == "match" else 1.0, max_new_tokens=60)
    given: dict[str, Any] = {
        "params": params,
        "config": LlamaConfig(**{**SMOLLM2, "num_hidden_layers": layers}),
        "steps": 2,
    }
    name = None if draft == "plain" else draft
    parts, of_reference = (
        fake_cuda.fake_run(name, policy, backends=backends, **given).parts[-1] for backends in ("gpu", "reference")
    )
    other = parts["control"] + parts["commit"] + parts["host"]
    sums = sum(parts.values()), sum(of_reference.values())
    return [parts["draft"], parts["target"], parts["accept"], other, *sums]


FEW = LAYERS // DEFAULT_SHARE + 1
"""Layers of a model whose first ones draft as many as SmolLM2's do."""


def few_layers(strategy: str) -> int:
    """As many as a strategy needs: one whose draft is the first ones of them has more than two."""
    return FEW if "draft_model" in strategy else 2


PLAIN, DRAFTING = BUDGET[0][0], BUDGET[1][0]


@cache
def of_a_layer(strategy: str) -> Sequence[int]:
    """What one more layer adds to the numbers of a row."""
    least = few_layers(strategy)
    few, more = (launches(strategy, layers) for layers in (least, least + 1))
    return [other - some for some, other in zip(few, more, strict=True)]


@cache
def of_layers(strategy: str, layers: int = LAYERS) -> Sequence[int]:
    """The numbers of a row of the table: those of few layers, and what each other layer adds to plain decoding, or to a
    step that verifies."""
    each = of_a_layer(PLAIN if strategy == PLAIN else DRAFTING)
    least = few_layers(strategy)
    return [some + (layers - least) * one for some, one in zip(launches(strategy, least), each, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [PLAIN, BUDGET[-1][0]])
def test_each_layer_adds_the_same_launches_whatever_is_drafted(strategy: str) -> None:
    assert of_layers(strategy, FEW) == launches(strategy, FEW)


@pytest.mark.slow
@pytest.mark.parametrize("row", BUDGET, ids=lambda row: row[0])
def test_a_step_of_smollm2_stays_within_its_budget_of_launches(row: Sequence[str]) -> None:
    """``-s`` prints the rows of the table in docs/kernels.md."""
    made = of_layers(row[0])
    print("|", " | ".join([row[0], *map(str, made)]), "|")
    for count, budget in zip(made, row[1:], strict=True):
        assert 0.95 * int(budget) <= count <= int(budget), "a budget that is not used up allows what it should refuse"


def test_without_its_draft_no_strategy_makes_more_than_1_3_times_the_launches_of_plain() -> None:
    """Read from the table of docs/kernels.md, whose numbers the test above holds. Plain makes at most 240."""
    beside = {row[0]: int(row[5]) - int(row[1]) for row in BUDGET}
    plain = beside["plain match"]
    assert plain <= 240
    assert not {name: made for name, made in beside.items() if made > 1.3 * plain}


class Faulty(Draft):
    """Proposes the last token again, after doing ``fault``."""

    def __init__(self, fault: Callable[[Context, int], Tensor]) -> None:
        self._fault, self._steps = fault, 0

    def propose(self, context: Context) -> Window:
        """Two proposals a row."""
        self._steps += 1
        extra = self._fault(context, self._steps)
        proposals = context.pending[:, None].expand(-1, 2) + extra.sum() * 0
        return Window.chain(context.pending, proposals, context.max_proposals.clamp(max=2))


def run_with(fault: Callable[[Context, int], Tensor]) -> FakeRun:
    """Steps of a draft with a fault."""

    def factory(env: Env) -> Draft:
        return Faulty(fault)

    return fake_cuda.fake_run("faulty", extra=(("draft", "faulty", factory),))


@pytest.mark.slow
def test_the_draft_that_the_faults_are_put_into_is_sound() -> None:
    must_hold(run_with(lambda context, step: context.length))


@pytest.mark.slow
def test_a_number_that_is_read_is_refused() -> None:
    with pytest.raises(DataDependentOutputException):
        run_with(lambda context, step: context.length + context.length[0].item())


@pytest.mark.slow
def test_a_shape_that_follows_numbers_is_refused() -> None:
    with pytest.raises(DynamicOutputShapeException):
        run_with(lambda context, step: context.length[context.length > 3])


@pytest.mark.slow
def test_an_index_on_the_cpu_is_found() -> None:
    found = run_with(lambda context, step: context.tokens[:, torch.tensor([0, 1])])
    assert any("of tensors on cpu and cuda" in fault for fault in found.faults)


@pytest.mark.slow
def test_a_copy_of_pageable_memory_is_found() -> None:
    found = run_with(lambda context, step: torch.zeros(3, dtype=torch.int64).to("cuda", non_blocking=True))
    assert any("a copy from cpu to cuda that waits" in fault for fault in found.faults)


@contextmanager
def copied(patch: pytest.MonkeyPatch) -> Iterator[tuple[list[str], fake_cuda.LaunchLog, HostCopy, Tensor]]:
    """What an event is asked, the log, a copy to the host and a tensor of fake CUDA for it."""
    done: list[str] = []
    event = SimpleNamespace(record=lambda: done.append("record"), synchronize=lambda: done.append("wait"))
    with fake_cuda.fake_cuda() as log:
        patch.setattr(torch.cuda, "Event", lambda: event)
        host, packed = HostCopy(torch.device("cuda")), torch.zeros(3, 9, dtype=torch.int64, device="cuda")
        log.on = True
        yield done, log, host, packed


def test_a_read_is_one_copy_into_pinned_memory_and_a_wait_for_that_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """``fake_run`` makes up what a step reads; this is the real read, up to its numbers."""
    with copied(monkeypatch) as (done, log, host, packed):
        whole, part = host.of(packed), host.of(packed[:1, 2:])
    assert [(tuple(read.shape), read.device.type) for read in (whole, part)] == [((3, 9), "cpu"), ((1, 7), "cpu")]
    assert shares_memory(whole, part), "a second buffer was allocated"
    assert not log.faults
    assert [(op[0], op[-1]) for op in log.stream] == [("aten.copy_.default", "True")] * 2, "a copy that waits by itself"
    assert done == ["record", "wait"] * 2


def test_a_read_that_was_started_early_copies_once_and_waits_late(monkeypatch: pytest.MonkeyPatch) -> None:
    with copied(monkeypatch) as (done, log, host, packed):
        host.start(packed)
        done.append("draft")
        assert host.of(packed).shape == (3, 9)
        assert host.of(packed[:1]).shape == (1, 9), "another tensor than the one that was started"
    assert done == ["record", "draft", "wait", "record", "wait"]
    assert [op[0] for op in log.stream] == ["aten.copy_.default"] * 2


@pytest.mark.slow
def test_a_synchronisation_is_found() -> None:
    def fault(context: Context, step: int) -> Tensor:
        torch.cuda.synchronize()
        return context.length

    assert any("a synchronisation" in fault for fault in run_with(fault).faults)


@pytest.mark.slow
def test_a_launch_too_many_is_found() -> None:
    found = run_with(lambda context, step: context.length + 1 if step % 2 else context.length)
    with pytest.raises(AssertionError):
        must_hold(found)
