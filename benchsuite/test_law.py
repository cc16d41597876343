"""Exact laws on tiny vocabularies: every outcome of a round is enumerated, nothing is sampled.

A scripted backend takes the place of ``sample`` and ``accept``: it asks a script for each outcome and
multiplies up the probability, and the real policy code runs once for each leaf.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

from benchsuite.conftest import registry
from specdec import Context, Policy, Window
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
        self.sizes.append(len(law))
        chosen = self.path[index] if index < len(self.path) else 0
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


def context(ops: Script) -> Context:
    """One sampled row after a prompt of one token."""
    one = torch.ones(1, dtype=torch.int64)
    params = StackedParams(one, torch.ones(1), one * 0, torch.ones(1), greedy=False, filtered=False)
    host = np.ones(1, dtype=np.int64)
    tokens = torch.zeros(1, 8, dtype=torch.int64)
    return Context(one, tokens, tokens.numpy(), one, host, one * 9, host * 9, params, ops, coupled=False)


def emitted_law(policy: Policy, p: dict[tuple[int, ...], list[float]], q: list[list[float]], certain: bool) -> Law:
    """The law of K + 1 emitted tokens: a round of the real policy, completed by the target's own law.

    ``p[prefix]`` is the target's law after the emitted prefix, ``q[i]`` the draft's at depth i; a certain
    draft proposes each token of q's support with q's probability and calls it certain.
    """
    depth, vocabulary = len(q), len(q[0])
    law: Law = defaultdict(float)
    for proposal in itertools.product(range(vocabulary), repeat=depth):
        drawn = float(np.prod([q[i][token] for i, token in enumerate(proposal)]))
        if drawn == 0:
            continue
        rows = [p[proposal[:i]] for i in range(depth + 1)]
        logits = torch.tensor([rows], dtype=torch.float64).log()
        laws = None if certain else torch.tensor([q], dtype=torch.float64)
        for script in leaves():
            window = Window.chain(torch.zeros(1).long(), torch.tensor([proposal]).long(), torch.tensor([depth]), laws)
            verdict = policy.accept(logits, window, context(script))
            accepted = int(verdict.num_accepted[0])
            out = (*proposal[:accepted], int(verdict.next[0]))
            for rest in itertools.product(range(vocabulary), repeat=depth + 1 - len(out)):
                weight = drawn * script.weight
                for index in range(len(rest)):
                    weight *= p[(*out, *rest[:index])][rest[index]]
                law[(*out, *rest)] += weight
    return law


def chain_rule(p: dict[tuple[int, ...], list[float]], length: int, vocabulary: int) -> Law:
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
@pytest.mark.parametrize("name", ["rejection", "match"])
def test_emitted_tokens_follow_the_targets_law(
    name: str, vocabulary: int, depth: int, zeros: bool, certain: bool
) -> None:
    generator = np.random.default_rng(vocabulary * 10 + depth)
    policy = registry().entry("policy", name).factory(None)
    for _ in range(3):
        p = {
            prefix: random_law(generator, vocabulary, zeros)
            for length in range(depth + 1)
            for prefix in itertools.product(range(vocabulary), repeat=length)
        }
        q = [random_law(generator, vocabulary, zeros) for _ in range(depth)]
        got, expected = emitted_law(policy, p, q, certain), chain_rule(p, depth + 1, vocabulary)
        distance = sum(abs(got.get(tokens, 0.0) - weight) for tokens, weight in expected.items()) / 2
        assert abs(sum(got.values()) - 1) < 1e-12
        assert distance < 1e-12, f"total variation {distance:.2e} from the target's chain rule"


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
