"""Outputs of whole runs have exactly the promised distribution."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from math import prod
from typing import Any

import pytest

from benchsuite.conformance.exact import exact_runs
from benchsuite.conformance.exact.enumerator import Shape, chain, completions
from benchsuite.conformance.exact.exact_runs import PROMPTS, Outputs, one, outputs
from benchsuite.conformance.exact.table_target import TableDraft, random_table
from benchsuite.conformance.models.tiny import policy_named as built
from benchsuite.tests.rig import pairs_in_turn, slow_after
from specdec import Context, Request, SamplingParams, Window
from specdec.stats import RowStats

Distance = Callable[..., float]
POLICIES = ("rejection", "block", "tree_rejection", "match")
FORK = Shape((-1, 0, 0))
FORK_DEEP = Shape((-1, 0, 0, 1, 2))


@pytest.fixture
def distance(seeds: range) -> Distance:
    """``exact_runs.run_distance`` of a policy by name, the largest over the seeds."""

    def worst(policy: str, *given: Any, **more: Any) -> float:
        return max(exact_runs.run_distance(built(policy), *given, seed=seed, **more) for seed in seeds)

    return worst


@pytest.mark.parametrize("certain", [False, True], ids=["drawn", "certain"])
@pytest.mark.parametrize("policy", slow_after(1, POLICIES))
def test_an_output_has_the_targets_distribution(policy: str, certain: bool, distance: Distance) -> None:
    assert distance(policy, 2, chain(2), one(3), certain=certain) < 1e-12
    assert distance(policy, 3, chain(1), one(2), certain=certain, zeros=True) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "k"),
    [("rejection", 3), ("block", 3), ("tree_rejection", 3), pytest.param("tree_rejection", 4, marks=pytest.mark.deep)],
)
def test_an_output_of_longer_proposals_has_the_targets_distribution(policy: str, k: int) -> None:
    assert exact_runs.run_distance(built(policy), 2, chain(k), one(k + 1)) < 1e-12


PROCESSORS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.5},
    "top-k": {"top_k": 2},
    "top-p": {"top_p": 0.71},
    "top-k, top-p": {"top_k": 2, "top_p": 0.61},
    "min-p": {"min_p": 0.5},
    "top-p, min-p": {"top_p": 0.71, "min_p": 0.25},
    "bias": {"logit_bias": {0: 1.5, 2: -0.5}},
    "all": {"temperature": 2.0, "top_k": 2, "top_p": 0.81, "min_p": 0.125, "logit_bias": {1: 0.5}},
}

STATEFUL: dict[str, dict[str, Any]] = {
    "repetition": {"repetition_penalty": 1.5},
    "repeating": {"repetition_penalty": 0.5},
    "frequency": {"frequency_penalty": 0.75},
    "presence": {"presence_penalty": -1.25},
    "penalties": {"repetition_penalty": 1.25, "frequency_penalty": 0.5, "presence_penalty": 1.0},
    "bad words": {"bad_words": ((1, 0, 0), (0, 1, 1))},
    "a bad word begun in the prompt": {"bad_words": ((0, 1, 0),)},
    "least length": {"eos": (1,), "min_new_tokens": 2},
    "all": {
        "temperature": 0.5,
        "top_p": 0.93,
        "min_p": 0.0625,
        "logit_bias": {1: 0.75},
        "repetition_penalty": 1.25,
        "frequency_penalty": 0.5,
        "presence_penalty": -0.25,
        "bad_words": ((0, 1, 0),),
        "eos": (0,),
        "min_new_tokens": 2,
    },
}
"""Processors whose result depends on the tokens before."""


@pytest.mark.parametrize(("policy", "kind"), pairs_in_turn(POLICIES, [*PROCESSORS]))
def test_an_output_has_the_processed_distribution(policy: str, kind: str, distance: Distance) -> None:
    assert distance(policy, 3, chain(1), one(2, **PROCESSORS[kind])) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "kind"), slow_after(3, pairs_in_turn(POLICIES, [*STATEFUL])))
def test_a_processor_sees_the_tokens_before_each_slot_of_a_chain(policy: str, kind: str, distance: Distance) -> None:
    assert distance(policy, 2, chain(2), one(3, **STATEFUL[kind])) < 1e-12


@pytest.mark.parametrize(("policy", "kind"), slow_after(2, pairs_in_turn(["tree_rejection", "match"], [*STATEFUL])))
def test_a_processor_sees_the_branch_of_each_slot_of_a_tree(policy: str, kind: str, distance: Distance) -> None:
    assert distance(policy, 2, FORK_DEEP, one(3, **STATEFUL[kind])) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_rows_of_a_batch_have_processors_of_their_own(policy: str, distance: Distance) -> None:
    """Three requests in two rows, so that one takes over a row whose parameters were others."""
    kinds: list[dict[str, Any]] = [
        {"repetition_penalty": 1.5, "bad_words": ((1, 1),)},
        {"frequency_penalty": 0.5, "logit_bias": {0: 1.0}},
        {"temperature": 0.5, "min_p": 0.5},
    ]
    requests = [
        Request(i, PROMPTS[i], SamplingParams(**{"temperature": 1.0, "max_new_tokens": n, **kind}))
        for i, (n, kind) in enumerate(zip((1, 2, 1), kinds, strict=True))
    ]
    assert distance(policy, 2, chain(1), requests, rows=2) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("policy", slow_after(1, POLICIES))
def test_an_output_that_may_end_early_has_the_targets_distribution(policy: str, distance: Distance) -> None:
    assert distance(policy, 2, chain(2), one(3, eos=(1,))) < 1e-12
    assert distance(policy, 3, chain(1), one(2, eos=(0, 2))) < 1e-12


@pytest.mark.parametrize("shape", [FORK, FORK_DEEP], ids=["siblings", "a child each"])
@pytest.mark.parametrize("policy", ["tree_rejection", "match"])
def test_an_output_drafted_by_trees_has_the_targets_distribution(policy: str, shape: Shape, distance: Distance) -> None:
    assert distance(policy, 2, shape, one(3)) < 1e-12


@pytest.mark.slow
def test_siblings_of_three_and_four_tokens_have_the_targets_distribution(distance: Distance) -> None:
    """With three tokens, by coincidence, a drawn residual that is not normalised leaves the distribution unchanged."""
    assert distance("tree_rejection", 4, FORK, one(3)) < 1e-12
    assert distance("tree_rejection", 3, FORK, one(3), certain=True) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_rows_of_a_batch_are_independent(policy: str, distance: Distance) -> None:
    """Three requests in two rows: one waits, and takes the row of the first that ends."""
    requests = [
        Request(i, PROMPTS[i], SamplingParams(temperature=1.0, max_new_tokens=n)) for i, n in enumerate((1, 2, 1))
    ]
    assert distance(policy, 2, chain(1), requests, rows=2) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("broken", [math.nan, math.inf])
@pytest.mark.parametrize("policy", slow_after(1, POLICIES))
def test_a_draft_without_a_distribution_in_one_row_leaves_the_distribution_of_both(
    policy: str, broken: float, distance: Distance
) -> None:
    """vllm#41834: the proposals of the first request are drawn from logits that are NaN or infinite, and so is q."""
    requests = [Request(i, PROMPTS[i], SamplingParams(temperature=1.0, max_new_tokens=2)) for i in range(2)]
    assert distance(policy, 2, chain(1), requests, rows=2, broken=[broken, 0.5]) < 1e-12
    assert distance(policy, 2, chain(2), one(3), broken=[broken, broken]) < 1e-12


@pytest.mark.parametrize("policy", slow_after(1, POLICIES))
def test_a_sliding_layer_sees_its_span_and_the_distribution_is_the_targets(policy: str, distance: Distance) -> None:
    assert distance(policy, 2, chain(2), one(3), span=2) < 1e-12


@pytest.mark.parametrize("certain", [False, True], ids=["drawn", "certain"])
@pytest.mark.parametrize("policy", slow_after(1, POLICIES))
def test_the_distribution_of_fractions_is_met_exactly(policy: str, certain: bool) -> None:
    """Total variation 0: if p and q are fractions, so is the probability of each decision; float64 identifies it."""
    distributions = random_table("p", 2), random_table("q", 2)
    requests = one(3)
    got = completions(lambda s: outputs(s, built(policy), distributions, 2, chain(2), certain, requests, 1), exact=True)
    expected: dict[Outputs, Fraction] = {}
    for out in itertools.product(range(2), repeat=3):
        steps = (distributions[0]((*PROMPTS[0], *out[:i]))[token] for i, token in enumerate(out))
        expected[(out,)] = prod(map(Fraction, steps), start=Fraction(1))
    assert got == expected


class Sure(TableDraft):
    """Tells a confidence that depends on what was drawn."""

    def propose(self, context: Context) -> Window:
        """The window of the tables."""
        window = super().propose(context)
        return replace(window, confidence=(window.tokens + 1) / 4)


def _by_request(row: RowStats) -> int:
    return (row.request + row.steps) % 3


def _by_confidence(row: RowStats) -> int:
    """After a last proposal that was the token 1 two proposals, else one: K follows from earlier draws."""
    return 2 if row.confidence[-1:] == (0.5,) else 1


@pytest.mark.parametrize(
    ("policy", "certain"),
    slow_after(1, pairs_in_turn(["rejection", "match", "tree_rejection", "block"], [False, True])),
)
def test_rows_of_different_k_have_the_targets_distribution(policy: str, certain: bool) -> None:
    requests = [Request(i, PROMPTS[i], SamplingParams(temperature=1.0, max_new_tokens=2 + i)) for i in range(2)]
    far = exact_runs.run_distance(
        built(policy), 2, chain(2), requests, rows=2, certain=certain, k_of=_by_request, draft=Sure
    )
    assert far < 1e-12


@pytest.mark.parametrize(
    ("policy", "shape"),
    slow_after(1, [*((policy, chain(2)) for policy in POLICIES), ("tree_rejection", FORK), ("match", FORK)]),
)
def test_a_k_that_follows_from_confidences_leaves_the_targets_distribution(policy: str, shape: Shape) -> None:
    assert exact_runs.run_distance(built(policy), 2, shape, one(4), k_of=_by_confidence, draft=Sure) < 1e-12
