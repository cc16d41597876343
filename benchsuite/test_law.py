"""Exact laws on tiny vocabularies: every outcome of a round is enumerated, nothing is sampled.

A scripted backend takes the place of ``sample`` and ``accept``: it asks a script for each outcome and
multiplies up the probability, and the real policy code runs once for each leaf.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

from benchsuite.conftest import registry
from specdec import Context, Policy, SamplingParams, Window
from specdec.sampling import StackedParams
from specdec_kernels.reference import Reference

pytestmark = pytest.mark.usefixtures("one_thread")
Law = dict[tuple[int, ...], float]


@dataclass
class Script(Reference):
    """Outcomes taken from ``path``; past its end the first outcome, remembering how many there were."""

    path: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    weight: float = 1.0

    def decide(self, law: list[float]) -> int:
        """The scripted outcome of one decision with these probabilities."""
        index = len(self.sizes)
        possible = [outcome for outcome, chance in enumerate(law) if chance > 0]
        self.sizes.append(len(possible))
        chosen = possible[self.path[index] if index < len(self.path) else 0]
        self.weight *= law[chosen]
        return chosen

    def sample(self, logits: Tensor, key: Tensor | None) -> Tensor:
        laws = logits.softmax(dim=-1).flatten(0, -2)
        return torch.tensor([self.decide(law.tolist()) for law in laws]).view(logits.shape[:-1])

    def accept(self, probability: Tensor, key: Tensor) -> Tensor:
        outcomes = [self.decide([min(1.0, p), 1 - min(1.0, p)]) == 0 for p in probability.flatten().tolist()]
        return torch.tensor(outcomes).view(probability.shape)


def leaves() -> Iterator[Script]:
    """Scripts that together take every path once: the caller runs each to its end before the next."""
    path: list[int] = []
    while True:
        script = Script(path=path)
        yield script
        taken = [*path, *[0] * (len(script.sizes) - len(path))]
        while taken and taken[-1] + 1 == script.sizes[len(taken) - 1]:
            taken.pop()
        if not taken:
            return
        path = [*taken[:-1], taken[-1] + 1]


def context(ops: Reference) -> Context:
    """One sampled row after a prompt of one token."""
    one = torch.ones(1, dtype=torch.int64)
    params = StackedParams(one, torch.ones(1), one * 0, torch.ones(1), greedy=False, filtered=False)
    host = np.ones(1, dtype=np.int64)
    tokens = torch.zeros(1, 8, dtype=torch.int64)
    return Context(one, tokens, tokens.numpy(), one, host, one * 9, host * 9, params, ops, coupled=False)


Laws = dict[tuple[int, ...], list[float]]


@dataclass(frozen=True)
class Shape:
    """The tree that a draft proposes: slot i's parent is ``parents[i]`` (slot 0, the root, has -1)."""

    parents: tuple[int, ...]

    @property
    def depth(self) -> int:
        return max(len(self.ancestry(slot)) for slot in range(len(self.parents)))

    def ancestry(self, slot: int) -> list[int]:
        """The slots from the root's child down to ``slot``."""
        return [] if slot == 0 else [*self.ancestry(self.parents[slot]), slot]


def drawn(shape: Shape, q: Laws, certain: bool) -> Iterator[tuple[float, list[int], list[list[float]]]]:
    """Every tree that a draft with law q[path] may draw, siblings without replacement: weight, tokens, q rows.

    A certain draft proposes the same trees and calls each token certain.
    """
    vocabulary = len(q[()])
    for tokens in itertools.product(range(vocabulary), repeat=len(shape.parents) - 1):
        slots = [-1, *tokens]
        weight, rows = 1.0, []
        for slot in range(1, len(slots)):
            parent = shape.parents[slot]
            law = list(q[tuple(slots[s] for s in shape.ancestry(parent))])
            for elder in range(1, slot):
                if shape.parents[elder] == parent:
                    law[slots[elder]] = 0.0
            total = sum(law)
            row = [share / total for share in law] if total else law
            weight *= row[slots[slot]]
            rows.append(row)
        if weight:
            yield weight, list(tokens), [] if certain else rows


def rounds(policy: Policy, p: Laws, q: Laws, shape: Shape, certain: bool) -> Iterator[tuple[float, tuple[int, ...]]]:
    """Every outcome of a round of the real policy: its probability and the tokens it emits."""
    size = len(shape.parents)
    for weight, tokens, rows in drawn(shape, q, certain):
        slots = [-1, *tokens]
        laws = [p[tuple(slots[s] for s in shape.ancestry(slot))] for slot in range(size)]
        logits = torch.tensor([laws], dtype=torch.float64).log()
        window = Window(
            torch.tensor([[0, *tokens]]),
            torch.tensor([shape.parents]),
            torch.tensor([size]),
            torch.tensor([rows], dtype=torch.float64) if rows else None,
        )
        for script in leaves():
            verdict = policy.accept(logits, window, context(script))
            accepted = int(verdict.num_accepted[0])
            path = verdict.path[0, 1 : accepted + 1].tolist()
            yield weight * script.weight, (*(slots[slot] for slot in path), int(verdict.next[0]))


def emitted_law(policy: Policy, p: Laws, q: Laws, shape: Shape, certain: bool) -> Law:
    """The law of depth + 1 emitted tokens: a round of the real policy, completed by the target's own law."""
    vocabulary, law = len(q[()]), defaultdict[tuple[int, ...], float](float)
    for chance, out in rounds(policy, p, q, shape, certain):
        for rest in itertools.product(range(vocabulary), repeat=shape.depth + 1 - len(out)):
            weight = chance
            for index in range(len(rest)):
                weight *= p[(*out, *rest[:index])][rest[index]]
            law[(*out, *rest)] += weight
    return law


def distance(policy: Policy, p: Laws, q: Laws, shape: Shape, certain: bool) -> float:
    """Total variation between the emitted tokens and the target's chain rule."""
    got = emitted_law(policy, p, q, shape, certain)
    expected = chain_rule(p, shape.depth + 1, len(q[()]))
    assert abs(sum(got.values()) - 1) < 1e-12
    return sum(abs(got.get(tokens, 0.0) - weight) for tokens, weight in expected.items()) / 2


def laws(generator: np.random.Generator, vocabulary: int, depth: int, zeros: bool = False) -> Laws:
    """A random law after every prefix of up to ``depth`` tokens."""
    return {
        prefix: random_law(generator, vocabulary, zeros)
        for length in range(depth + 1)
        for prefix in itertools.product(range(vocabulary), repeat=length)
    }


def build(text: str) -> Policy:
    """A policy by name and options; none of them asks anything of its environment."""
    entry, options = registry().parse("policy", text)
    built: Policy = entry.factory(None, **options)
    return built


def chain(depth: int) -> Shape:
    return Shape(tuple(range(-1, depth)))


def chain_rule(p: Laws, length: int, vocabulary: int) -> Law:
    """The target's own law of ``length`` tokens."""
    return {
        tokens: float(np.prod([p[tokens[:i]][token] for i, token in enumerate(tokens)]))
        for tokens in itertools.product(range(vocabulary), repeat=length)
    }


def random_law(generator: np.random.Generator, vocabulary: int, zeros: bool) -> list[float]:
    """A law whose probabilities are multiples of 1/64; with ``zeros`` some tokens are impossible."""
    low = 0 if zeros else 1
    while True:
        parts = generator.integers(low, 40, vocabulary)
        if parts.sum():
            break
    shares = [Fraction(int(part), int(parts.sum())) for part in parts]
    return [float(share) for share in shares]


@pytest.mark.parametrize("certain", [False, True], ids=["drawn", "certain"])
@pytest.mark.parametrize("zeros", [False, True], ids=["full", "with-zeros"])
@pytest.mark.parametrize(("vocabulary", "depth"), [(2, 1), (2, 3), (3, 1), (3, 2), (4, 2)])
@pytest.mark.parametrize("name", ["rejection", "block", "tree_rejection", "match"])
def test_emitted_tokens_follow_the_targets_law(
    name: str, vocabulary: int, depth: int, zeros: bool, certain: bool
) -> None:
    generator = np.random.default_rng(vocabulary * 10 + depth)
    for _ in range(3):
        p, q = laws(generator, vocabulary, depth, zeros), laws(generator, vocabulary, depth, zeros)
        assert distance(build(name), p, q, chain(depth), certain) < 1e-12


TREES = [
    Shape((-1, 0, 0)),  # two siblings
    Shape((-1, 0, 0, 0)),  # every token of three: the last is certain to be kept or worthless
    Shape((-1, 0, 0, 1, 1)),  # siblings under the elder
    Shape((-1, 0, 0, 1, 2)),  # a child each
    Shape((-1, 0, 1, 0, 3)),  # depth first: the order of slots is not that of depths
]


@pytest.mark.parametrize("certain", [False, True], ids=["drawn", "certain"])
@pytest.mark.parametrize("shape", TREES, ids=lambda shape: "".join(map(str, shape.parents[1:])))
@pytest.mark.parametrize("name", ["tree_rejection", "match"])
def test_tokens_emitted_from_trees_follow_the_targets_law(name: str, shape: Shape, certain: bool) -> None:
    generator = np.random.default_rng(len(shape.parents))
    # `match` draws at every node: with three tokens, five nodes have 60,000 outcomes.
    vocabulary = 2 if name == "match" and len(shape.parents) > 4 else 3
    p, q = laws(generator, vocabulary, shape.depth), laws(generator, vocabulary, shape.depth)
    assert distance(build(name), p, q, shape, certain) < 1e-12


def one_coin(p: list[float], q: list[float]) -> list[float]:
    """The first token's law if two siblings shared one uniform, integrated over it: a bug that shipped."""
    law = [0.0] * len(p)
    for weight, (first, second), rows in drawn(TREES[0], {(): q}, certain=False):
        a = min(1.0, p[first] / rows[0][first])
        left = [max(0.0, x - y) for x, y in zip(p, rows[0], strict=True)]
        left = [x / sum(left) for x in left] if sum(left) else p
        b = min(1.0, left[second] / rows[1][second])
        rest = [max(0.0, x - y) for x, y in zip(left, rows[1], strict=True)]
        law[first] += weight * a
        law[second] += weight * max(0.0, b - a)
        for token, mass in enumerate(rest):
            law[token] += weight * (1 - max(a, b)) * (mass / sum(rest) if sum(rest) else left[token])
    return law


def test_siblings_that_share_a_coin_are_far_from_the_target_and_ours_are_not() -> None:
    generator = np.random.default_rng(7)
    far = []
    for _ in range(20):
        p, q = laws(generator, 3, 1), laws(generator, 3, 1)
        far.append(sum(abs(a - b) for a, b in zip(one_coin(p[()], q[()]), p[()], strict=True)) / 2)
        assert distance(build("tree_rejection"), p, q, TREES[0], certain=False) < 1e-12
    assert max(far) > 0.02, far


@pytest.mark.parametrize(("vocabulary", "depth"), [(2, 2), (2, 4), (3, 2), (3, 3), (4, 2)])
def test_block_verification_keeps_no_fewer_tokens_than_token_wise_in_expectation(vocabulary: int, depth: int) -> None:
    generator = np.random.default_rng(vocabulary * 100 + depth)
    gains = []
    for _ in range(4):
        p, q = laws(generator, vocabulary, depth), laws(generator, vocabulary, depth)
        block, token_wise = (
            sum(chance * (len(out) - 1) for chance, out in rounds(build(name), p, q, chain(depth), certain=False))
            for name in ("block", "rejection")
        )
        gains.append(block - token_wise)
    assert min(gains) > -1e-12, gains
    assert max(gains) > 1e-3, "no case in which the two differ: nothing was shown"


def test_the_coins_of_block_verification_are_fresh_in_every_step() -> None:
    """A block looks at coins past its rejection; at the same position the next step must throw others."""
    seen: list[set[int]] = []

    class Spy(Reference):
        def accept(self, probability: Tensor, key: Tensor) -> Tensor:
            seen.append(set(key.flatten().tolist()))
            return super().accept(probability, key)

    law = torch.full((1, 4, 3), 1 / 3)
    window = Window.chain(torch.zeros(1).long(), torch.zeros(1, 3).long(), torch.tensor([3]), law[:, 1:])
    for length in (1, 2, 3):
        build("block").accept(law.log(), window, replace(context(Spy()), length=torch.tensor([length])))
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
    """Two tokens of three, K = 1: each distance printed, above 0, and the policy says lossy."""
    p: Laws = {(): [0.5, 0.4, 0.1], **{(t,): [0.6, 0.3, 0.1] for t in range(3)}}
    q: Laws = {(): [0.2, 0.7, 0.1]}
    policy = build(text)
    far = distance(policy, p, q, chain(1), certain=True)
    print(f"{text}: total variation {far:.4f}")
    assert policy.contract(SamplingParams(temperature=1.0)) == "lossy"
    assert far > 0.01


def test_a_threshold_that_keeps_too_much_is_as_far_off_as_the_draft_makes_it() -> None:
    """tau = 0.3 keeps tokens 0 and 1 as drawn from q and redraws the rest: first token (.25, .74, .01)."""
    p: Laws = {(): [0.5, 0.4, 0.1], **{(t,): [1.0, 0.0, 0.0] for t in range(3)}}
    q: Laws = {(): [0.2, 0.7, 0.1]}
    law = emitted_law(build("conf_threshold(tau=0.3)"), p, q, chain(1), certain=True)
    first = [sum(w for tokens, w in law.items() if tokens[0] == t) for t in range(3)]
    assert first == pytest.approx([0.25, 0.74, 0.01], abs=1e-12)


def test_the_enumeration_finds_a_q_that_is_not_what_was_drawn_from() -> None:
    """transformers#32867: argmax drawn, softmax handed over. p = (.6, .4), q = (.8, .2) yields (.75, .25)."""
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
    """The chance that a proposal drawn from q survives is sum_x min(p(x), q(x))."""
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
