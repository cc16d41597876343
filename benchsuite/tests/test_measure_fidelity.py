"""Checks of outputs that may differ from plain's: right where the result can be computed, and able to fail."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from benchsuite.measure.fidelity import FALSE_ALARM, Fidelity, examine
from benchsuite.measure.matrix import Arm
from benchsuite.measure.paired import Series, checked
from benchsuite.measure.ties import Judge
from benchsuite.prove.tiny import prompts
from benchsuite.tests.rig import SETTING, Make
from specdec import Request, SamplingParams

SAMPLED = SamplingParams(temperature=1.0, seed=2, max_new_tokens=60)
LOSSY = Arm(SETTING, draft="ngram", policy="topk_agree", k=4)


def whole(assemble: Make, policy: str, drawn: SamplingParams, judged: SamplingParams) -> Fidelity:
    """Twelve outputs of 60 tokens, drawn with one set of parameters and judged by another."""
    build = assemble("llama", max_length=140)
    judge, engine = Judge(build.target, range(40)), build.engine("draft_model", policy, k=3)
    work = [Request(i, prompt, drawn) for i, prompt in enumerate(prompts(6) + prompts(6, seed=1))]
    total = Fidelity()
    for request, done in zip(work, engine.run(work), strict=True):
        total += examine(judge, replace(request, params=judged), build.plain(request), done.tokens)
    return total


@pytest.mark.parametrize(
    ("policy", "filters"),
    [
        *(pytest.param(policy, {}, marks=pytest.mark.slow) for policy in ("match", "rejection", "block")),
        ("tree_rejection", {}),
        pytest.param("block", {"temperature": 0.7, "top_k": 30, "top_p": 0.9}, marks=pytest.mark.slow),
    ],
    ids=["match", "rejection", "block", "tree_rejection", "block-filtered"],
)
def test_outputs_of_lossless_policies_follow_the_distribution(
    policy: str, filters: dict[str, float], assemble: Make
) -> None:
    """720 tokens; a policy with the target's distribution fails for one seed in a million, and the seed is fixed."""
    params = replace(SAMPLED, **filters)  # type: ignore[arg-type]
    found = whole(assemble, policy, params, params)
    assert sum(found.bins) == 12 * 60
    assert found.p_value > FALSE_ALARM, found.bins


def test_outputs_of_another_temperature_are_found(assemble: Make) -> None:
    """Tokens drawn at 1.6 and judged at 1: their transforms are too often in the unlikely bins.

    With n tokens a total variation d of the transforms increases the chi-square by at least 4 n d^2. With n = 720 and d
    = 0.15 this is 65; the threshold is 45 at 9 degrees and one in a million.
    """
    found = whole(assemble, "rejection", replace(SAMPLED, temperature=1.6), SAMPLED)
    assert found.p_value < FALSE_ALARM, found.bins


def test_perplexity_and_agreement_are_those_computed_by_hand(assemble: Make) -> None:
    build = assemble("llama")
    judge, request = Judge(build.target, range(40)), Request(0, prompts(1)[0], SAMPLED)
    plain, got = (3, 4, 5, 6), (3, 9, 5)
    found = examine(judge, request, plain, got)
    distributions = [judge.logits((*request.prompt, *got[:i])).double().log_softmax(dim=0) for i in range(3)]
    by_hand = -sum(float(distribution[token]) for distribution, token in zip(distributions, got, strict=True))
    assert found.surprise == pytest.approx(by_hand, rel=1e-5)
    assert found.perplexities[0] == pytest.approx(math.exp(by_hand / 3), rel=1e-5)
    assert (found.agreed, found.tokens, found.plain_tokens) == (2, 3, 4)
    two = found + found
    assert two.perplexities == found.perplexities
    assert sum(two.bins) == 6


def test_even_bins_have_p_one_and_known_unevenness_its_tabled_value() -> None:
    assert Fidelity([50] * 10).p_value == pytest.approx(1.0)
    # 21.666 is the 1 % point of chi-square with 9 degrees of freedom.
    lean = math.sqrt(21.666 * 100 / 2)
    assert Fidelity([100 + lean, 100 - lean, *[100] * 8]).p_value == pytest.approx(0.01, rel=1e-3)  # type: ignore[list-item]


def test_a_row_says_what_was_examined() -> None:
    even, steep = Fidelity([10] * 10, 60, 100, 100.0, 100, 50.0), Fidelity([91] + [1] * 9, 60, 100, 100.0, 100, 50.0)
    assert checked([Series(LOSSY, "lossy", fidelity=steep)]) == f"60% agree; ppl {math.e:.2f} for {math.exp(0.5):.2f}"
    assert Series(LOSSY, "lossy", fidelity=steep).failure is None
    assert checked([Series(LOSSY, "distribution", fidelity=even)]) == "p=1"
    broken = Series(LOSSY, "distribution", fidelity=steep)
    assert (checked([broken]) or "").startswith("FAILED: p=")
    assert "do not follow the target's distribution" in (broken.failure or "")
