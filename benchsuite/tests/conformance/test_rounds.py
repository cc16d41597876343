"""Exact distributions on tiny vocabularies: every outcome of a round is enumerated, nothing is sampled."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from benchsuite.conformance.exact.enumerator import (
    Distributions,
    Reported,
    Shape,
    chain,
    context,
    drawn_trees,
    emitted_distribution,
    leaves,
    random_distributions,
    round_distance,
    rounds,
)
from benchsuite.conformance.models.tiny import policy_named as policy_of
from benchsuite.conformance.models.tiny import registry
from benchsuite.tests.faulty_noise import SharedCoin
from benchsuite.tests.rig import pairs_in_turn
from specdec import SamplingParams, Window
from specdec_kernels.reference import Reference


@pytest.mark.parametrize("certain", [False, True], ids=["drawn", "certain"])
@pytest.mark.parametrize("zeros", [False, True], ids=["full", "with-zeros"])
@pytest.mark.parametrize(
    ("vocabulary", "depth"), [(2, 1), (2, 4), (3, 1), (3, 2), pytest.param(4, 2, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", ["rejection", "block", "tree_rejection", "match"])
def test_emitted_tokens_follow_the_targets_distribution(
    name: str, vocabulary: int, depth: int, zeros: bool, certain: bool, seeds: range
) -> None:
    generator = np.random.default_rng(vocabulary * 10 + depth)
    for _ in range((3 if depth == 1 else 1) * len(seeds)):
        p, q = (
            random_distributions(generator, vocabulary, depth, zeros),
            random_distributions(generator, vocabulary, depth, zeros),
        )
        assert round_distance(policy_of(name), p, q, chain(depth), certain) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "vocabulary", "depth"),
    [
        *((name, *size) for name in ("rejection", "block", "tree_rejection") for size in ((3, 4), (4, 3))),
        ("rejection", 4, 4),
        ("tree_rejection", 4, 4),
        ("match", 3, 3),  # it draws at every node, so deeper trees have two tokens only, above
    ],
)
def test_tokens_emitted_from_longer_chains_follow_the_targets_distribution(
    name: str, vocabulary: int, depth: int
) -> None:
    generator = np.random.default_rng(vocabulary * 10 + depth)
    p, q = random_distributions(generator, vocabulary, depth), random_distributions(generator, vocabulary, depth)
    assert round_distance(policy_of(name), p, q, chain(depth), certain=False) < 1e-12


TREES = [
    Shape((-1, 0, 0)),  # two siblings
    Shape((-1, 0, 0, 0)),  # all three tokens: the last is certainly kept or impossible
    Shape((-1, 0, 0, 1, 1)),  # siblings under the elder
    Shape((-1, 0, 0, 1, 2)),  # a child each
    Shape((-1, 0, 1, 0, 3)),  # depth first: the order of slots is not that of depths
]


@pytest.mark.parametrize(("shape", "certain"), pairs_in_turn(TREES, [False, True]))
@pytest.mark.parametrize("name", ["tree_rejection", "match"])
def test_tokens_emitted_from_trees_follow_the_targets_distribution(
    name: str, shape: Shape, certain: bool, seeds: range
) -> None:
    generator = np.random.default_rng(len(shape.parents))
    # `match` draws at every node: with three tokens, five nodes have 60,000 outcomes.
    vocabulary = 2 if name == "match" and len(shape.parents) > 4 else 3
    for _ in seeds:
        p, q = (
            random_distributions(generator, vocabulary, shape.depth),
            random_distributions(generator, vocabulary, shape.depth),
        )
        assert round_distance(policy_of(name), p, q, shape, certain) < 1e-12


HIDDEN: dict[str, Reported] = {
    "the first row": lambda rows: [[math.nan] * len(rows[0]), *rows[1:]],
    "the last row": lambda rows: [*rows[:-1], [math.inf] * len(rows[0])],
    "a token of every row": lambda rows: [[math.nan, *row[1:]] for row in rows],
    "a token of the first row": lambda rows: [[*rows[0][:-1], -math.inf], *rows[1:]],
    "all": lambda rows: [[math.nan] * len(row) for row in rows],
}
"""Numbers of q that are not finite, at places that depend on no draw."""


@pytest.mark.parametrize("hidden", HIDDEN.values(), ids=HIDDEN)
@pytest.mark.parametrize("name", ["rejection", "block", "tree_rejection"])
def test_numbers_of_q_that_are_not_finite_leave_the_targets_distribution(name: str, hidden: Reported) -> None:
    generator = np.random.default_rng(3)
    shapes = [chain(1), chain(3), *(TREES[::3] if name == "tree_rejection" else ())]
    for shape in shapes:
        p, q = (random_distributions(generator, 2, shape.depth) for _ in range(2))
        assert round_distance(policy_of(name), p, q, shape, certain=False, reported=hidden) < 1e-12


def one_coin(p: list[float], q: list[float]) -> list[float]:
    """The first token's distribution if two siblings share one uniform, integrated over it: a bug that shipped."""
    distribution = [0.0] * len(p)
    for weight, (first, second), rows in drawn_trees(TREES[0], {(): q}, certain=False):
        a = min(1.0, p[first] / rows[0][first])
        left = [max(0.0, x - y) for x, y in zip(p, rows[0], strict=True)]
        left = [x / sum(left) for x in left] if sum(left) else p
        b = min(1.0, left[second] / rows[1][second])
        rest = [max(0.0, x - y) for x, y in zip(left, rows[1], strict=True)]
        distribution[first] += weight * a
        distribution[second] += weight * max(0.0, b - a)
        for token, mass in enumerate(rest):
            distribution[token] += weight * (1 - max(a, b)) * (mass / sum(rest) if sum(rest) else left[token])
    return distribution


@pytest.mark.slow
def test_siblings_that_share_a_coin_are_far_from_the_target_and_ours_are_not() -> None:
    """A policy that gives both siblings one key is enumerated, and is as far off as the integral over their coin says;
    the keys of ours are enumerated too, so that ours would be as far if they shared one."""
    generator, far = np.random.default_rng(7), []
    for _ in range(20):
        p, q = random_distributions(generator, 3, 1), random_distributions(generator, 3, 1)
        far.append(round_distance(SharedCoin(None), p, q, TREES[0], certain=False))  # type: ignore[arg-type]
        integral = sum(abs(a - b) for a, b in zip(one_coin(p[()], q[()]), p[()], strict=True)) / 2
        assert far[-1] == pytest.approx(integral, abs=1e-12)
        assert round_distance(policy_of("tree_rejection"), p, q, TREES[0], certain=False) < 1e-12
    assert max(far) > 0.02, far


@pytest.mark.slow
@pytest.mark.parametrize(("vocabulary", "depth"), [(2, 2), (2, 4), (3, 2), (3, 3), (4, 2)])
def test_block_verification_keeps_no_fewer_tokens_than_token_wise_in_expectation(vocabulary: int, depth: int) -> None:
    generator = np.random.default_rng(vocabulary * 100 + depth)
    gains = []
    for _ in range(4):
        p, q = random_distributions(generator, vocabulary, depth), random_distributions(generator, vocabulary, depth)
        block, token_wise = (
            sum(chance * (len(out) - 1) for chance, out in rounds(policy_of(name), p, q, chain(depth), certain=False))
            for name in ("block", "rejection")
        )
        gains.append(block - token_wise)
    assert min(gains) > -1e-12, gains
    assert max(gains) > 1e-3, "no case in which the two differ: nothing was shown"


def test_the_coins_of_block_verification_are_fresh_in_every_step() -> None:
    """A block uses coins past its rejection; at the same positions the next step must draw new coins."""
    seen: list[set[int]] = []

    class Spy(Reference):
        def accept(self, probability: Tensor, key: Tensor) -> Tensor:
            seen.append(set(key.flatten().tolist()))
            return super().accept(probability, key)

    distribution = torch.full((1, 4, 3), 1 / 3)
    window = Window.chain(torch.zeros(1).long(), torch.zeros(1, 3).long(), torch.tensor([3]), distribution[:, 1:])
    for length in (1, 2, 3):
        policy_of("block").accept(distribution.log(), window, replace(context(Spy()), length=torch.tensor([length])))
    assert not seen[0] & seen[1]
    assert not seen[0] & seen[2]
    assert not seen[1] & seen[2]


LOSSY = (
    "longest_prefix",
    "conf_threshold(tau=0.3)",
    "topk_agree(k=2)",
    "typical(epsilon=0.3, delta=0.09)",
    "typical(p=0.5)",
    "tree_agree(m=1, k=2)",
)


@pytest.mark.parametrize("text", LOSSY)
def test_a_lossy_policys_distance_from_the_target_is_what_enumeration_says(text: str) -> None:
    """Two tokens of three, K = 1: each distance is printed and above 0, and the policy declares itself lossy."""
    p: Distributions = {(): [0.5, 0.4, 0.1], **{(t,): [0.6, 0.3, 0.1] for t in range(3)}}
    q: Distributions = {(): [0.2, 0.7, 0.1]}
    policy = policy_of(text)
    far = round_distance(policy, p, q, chain(1), certain=True)
    print(f"{text}: total variation {far:.4f}")
    assert policy.contract(SamplingParams(temperature=1.0)) == "lossy"
    assert far > 0.01


def test_a_threshold_that_keeps_too_much_is_as_far_off_as_the_draft_makes_it() -> None:
    """tau = 0.3 keeps tokens 0 and 1 as drawn from q and redraws the rest: first token (.25, .74, .01)."""
    p: Distributions = {(): [0.5, 0.4, 0.1], **{(t,): [1.0, 0.0, 0.0] for t in range(3)}}
    q: Distributions = {(): [0.2, 0.7, 0.1]}
    distribution = emitted_distribution(policy_of("conf_threshold(tau=0.3)"), p, q, chain(1), certain=True)
    first = [sum(w for tokens, w in distribution.items() if tokens[0] == t) for t in range(3)]
    assert first == pytest.approx([0.25, 0.74, 0.01], abs=1e-12)


def test_the_enumeration_finds_a_q_that_is_not_what_was_drawn_from() -> None:
    """transformers#32867: argmax drawn, softmax returned as q. p = (.6, .4), q = (.8, .2) yields (.75, .25)."""
    policy = registry().entry("policy", "rejection").factory(None)
    p = {(): [0.6, 0.4], (0,): [0.5, 0.5], (1,): [0.5, 0.5]}
    first: dict[int, float] = defaultdict(float)
    logits = torch.tensor([[p[()], p[(0,)]]], dtype=torch.float64).log()
    for script in leaves():
        window = Window.chain(
            torch.zeros(1).long(), torch.tensor([[0]]), torch.tensor([1]), torch.tensor([[[0.8, 0.2]]]).double()
        )
        verdict = policy.accept(logits, window, context(script))
        first[0 if int(verdict.num_accepted[0]) else int(verdict.next[0])] += script.weight
    assert first[0] == pytest.approx(0.75)


def test_the_acceptance_of_one_proposal_is_alpha() -> None:
    """A proposal drawn from q is kept with probability sum_x min(p(x), q(x))."""
    p, q = [0.5, 0.25, 0.25], [0.25, 0.5, 0.25]
    policy = registry().entry("policy", "rejection").factory(None)
    kept = 0.0
    for token in range(3):
        logits = torch.tensor([[p, p]], dtype=torch.float64).log()
        for script in leaves():
            window = Window.chain(
                torch.zeros(1).long(), torch.tensor([[token]]), torch.tensor([1]), torch.tensor([[q]]).double()
            )
            accepted = int(policy.accept(logits, window, context(script)).num_accepted[0])
            kept += q[token] * script.weight * accepted
    assert kept == pytest.approx(sum(map(min, p, q)), abs=1e-12)
