"""Steps on fake MPS tensors read once, mix no devices, wait for no copy, make no float64, and can be repeated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException
from transformers import AutoModelForCausalLM, PreTrainedModel

from benchsuite.benches.kernels.shapes import PROCESSED
from benchsuite.conformance.guards import fake_cuda
from benchsuite.conformance.models import families
from benchsuite.judge.judgement import OutputJudge
from benchsuite.judge.ties import surprise
from benchsuite.measure.weights import perplexity
from benchsuite.tests.rig import slow_after
from specdec import Context, Draft, SamplingParams, Window
from specdec.interfaces import Env

pytestmark = pytest.mark.fake_gpu

STRATEGIES = (
    *(("draft_model", "match"), ("ngram", "longest_prefix"), ("eagle(head=trained)", "rejection")),
    *(("garbage", "block"), ("medusa(head_init=trained, beam=2)", "tree_rejection"), ("suffix", "typical")),
)
"""The kinds of drafts, each with another policy; the pairs are those of the fake CUDA's tests."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("draft", "policy"),
    slow_after(1, [*STRATEGIES[:2], *(pytest.param(*strategy, marks=pytest.mark.slow) for strategy in STRATEGIES[2:])]),
)
def test_a_step_on_mps_reads_once_waits_nowhere_and_makes_no_float64(draft: str, policy: str) -> None:
    params = SamplingParams(temperature=0.0 if policy == "match" else 1.0, top_k=40, top_p=0.9, max_new_tokens=60)
    found = fake_cuda.fake_run(draft, policy, steps=3, params=params, device="mps")
    assert found.wrong() is None


@pytest.mark.slow
def test_requests_with_everything_on_are_admitted_on_mps() -> None:
    params = replace(PROCESSED["every"], max_new_tokens=60, min_new_tokens=3, logprobs=2)
    found = fake_cuda.fake_run("garbage", params=params, rows=2, steps=5, enters=True, device="mps")
    assert not found.faults


class Wide(Draft):
    """Proposes the last token again, after doing ``fault``."""

    def __init__(self, fault: Callable[[Context], object]) -> None:
        self._fault = fault

    def propose(self, context: Context) -> Window:
        """One proposal a row."""
        self._fault(context)
        return Window.chain(context.pending, context.pending[:, None], context.max_proposals.clamp(max=1))


def run_on_mps(fault: Callable[[Context], object]) -> fake_cuda.FakeRun:
    """Steps on MPS of a draft with a fault."""

    def factory(env: Env) -> Draft:
        return Wide(fault)

    return fake_cuda.fake_run("wide", extra=(("draft", "wide", factory),), device="mps")


@pytest.mark.slow
def test_float64_is_refused_on_mps() -> None:
    with pytest.raises(TypeError, match="float64, which MPS does not have"):
        run_on_mps(lambda context: context.length.double())
    assert not run_on_mps(lambda context: context.length.float()).faults


@pytest.mark.slow
def test_a_copy_that_waits_is_found_on_mps() -> None:
    found = run_on_mps(lambda context: torch.zeros(3).to("mps"))
    assert any("a copy from cpu to mps that waits" in fault for fault in found.faults)


@pytest.mark.slow
def test_a_number_that_is_read_is_refused_on_mps() -> None:
    with pytest.raises(DataDependentOutputException):
        run_on_mps(lambda context: context.length[0].item())


def surprise_of_judge(model: PreTrainedModel) -> object:
    """The surprise of a judge whose model is loaded."""
    judge = object.__new__(OutputJudge)
    loaded = SimpleNamespace(model=model, tokenizer=SimpleNamespace(get_vocab=dict))
    judge.__dict__.update(name="tiny", _loaded=loaded)
    return judge.surprise((1, 2), (3, 4))


@pytest.mark.slow
@pytest.mark.parametrize(
    "figure",
    [
        pytest.param(lambda model: surprise(model(torch.ones(1, 3).long().to("mps")).logits[0], (1, 2, 3)), id="ties"),
        pytest.param(lambda model: perplexity(model, [(1, 2, 3)]), id="weights"),
        pytest.param(surprise_of_judge, id="judgement"),
    ],
)
def test_a_figure_is_summed_in_float64_on_the_host(figure: Callable[[PreTrainedModel], object]) -> None:
    """A sum of float64 on MPS would raise TypeError before the number is read, which a fake tensor refuses."""
    with fake_cuda.fake_cuda(device="mps"), torch.inference_mode(), torch.device("mps"):
        model = AutoModelForCausalLM.from_config(families.CONFIGS["llama"](), dtype=torch.bfloat16)
        with pytest.raises(DataDependentOutputException):
            figure(model)
