"""Lossy policies accept what their rules say, node by node, and nothing that lies just beyond."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from benchsuite.conformance.exact.enumerator import context
from benchsuite.conformance.models.tiny import policy_named
from specdec import Purpose, Window
from specdec_kernels.reference import Reference
from specdec_plugins.lenient import Lenient

VOCABULARY = 5
Rule = Callable[[list[float], int, int, Window], bool]
"""Whether a node is good: p at its parent, its token, its slot, its window of one row."""


def surprisal(p: list[float], token: int) -> float:
    """How far a token's surprise is from the entropy."""
    entropy = -sum(x * math.log(x) for x in p if x)
    return abs(-math.log(p[token]) - entropy) if p[token] else math.inf


def votes(window: Window, slot: int) -> int:
    """How many valid nodes of a node's depth propose its token."""
    tokens, depth = window.tokens[0].tolist(), window.depth[0].tolist()
    return sum((tokens[i], depth[i]) == (tokens[slot], depth[slot]) for i in range(1, int(window.width[0])))


def likelier(p: list[float], token: int) -> int:
    """How many tokens are likelier."""
    return sum(x > p[token] for x in p)


RULES: dict[str, Rule] = {
    "conf_threshold(tau=0.25)": lambda p, token, slot, window: p[token] >= 0.25,
    "topk_agree(k=1)": lambda p, token, slot, window: likelier(p, token) < 1,
    "topk_agree(k=3)": lambda p, token, slot, window: likelier(p, token) < 3,
    "tree_agree(m=1, k=2)": lambda p, token, slot, window: likelier(p, token) < 2,
    "tree_agree(m=2, k=3)": lambda p, token, slot, window: votes(window, slot) >= 2 and likelier(p, token) < 3,
    "typical(epsilon=0.25, delta=0.75)": lambda p, token, slot, window: (
        p[token] > min(0.25, 0.75 * math.exp(sum(x * math.log(x) for x in p if x)))
    ),
    "typical(p=0.5)": lambda p, token, slot, window: (
        p[token] > 0 and sum(x for other, x in enumerate(p) if surprisal(p, other) < surprisal(p, token)) < 0.5
    ),
    "longest_prefix": lambda p, token, slot, window: token == p.index(max(p)),
}
"""The rules of docs/strategies.md, one node at a time."""


def walked(rule: Rule, p: list[list[float]], own: Callable[[int, int], int], window: Window) -> tuple[list[int], int]:
    """The slots that are accepted by going to the first good child, and the token that follows.

    ``own``: the target's own token after a slot at a depth. A child that is not good and is this token is kept as that.
    """
    tokens, parents, at, path = window.tokens[0].tolist(), window.parents[0].tolist(), 0, [0]
    while True:
        children = [i for i in range(1, int(window.width[0])) if parents[i] == at]
        drawn = own(at, len(path) - 1)
        good = [i for i in children if rule(p[at], tokens[i], i, window)] or [i for i in children if tokens[i] == drawn]
        if not good:
            return path, drawn
        at = good[0]
        path.append(at)


@st.composite
def policy_cases(draw: st.DrawFn) -> tuple[list[list[float]], Window]:
    """A tree of up to seven slots, some of them padding, and distributions of sixteenths after each: many equal."""
    size = draw(st.integers(1, 7))
    parents = [-1, *(draw(st.integers(0, slot - 1)) for slot in range(1, size))]
    tokens = draw(st.lists(st.integers(0, VOCABULARY - 1), min_size=size, max_size=size))
    width = draw(st.integers(1, size))
    p = []
    for _ in range(size):
        cuts = sorted(draw(st.lists(st.integers(0, 16), min_size=VOCABULARY - 1, max_size=VOCABULARY - 1)))
        p.append([(b - a) / 16 for a, b in zip([0, *cuts], [*cuts, 16], strict=True)])
    return p, Window(torch.tensor([tokens]), torch.tensor([parents]), torch.tensor([width]))


def paddings() -> tuple[list[list[float]], Window]:
    """Three siblings of one token, of which the last two are padding, and each is the second likeliest."""
    p = [[0.5, 0.25, 0.25, 0.0, 0.0]] * 4
    return p, Window(torch.tensor([[0, 1, 1, 1]]), torch.tensor([[-1, 0, 0, 0]]), torch.tensor([2]))


@pytest.mark.slow
@example(paddings(), True)
@given(policy_cases(), st.booleans())
def test_lossy_policies_follow_their_rules_from_good_child_to_good_child(
    case: tuple[list[list[float]], Window], greedy: bool
) -> None:
    """Float64, so that sixteenths are exact. What follows is the target's own draw at the place of the last node."""
    p, window = case
    one = context(Reference())
    if greedy:
        one = replace(one, params=replace(one.params, temperature=torch.zeros(1), greedy=True))
    logits = torch.tensor([p], dtype=torch.float64).log()
    processed, distribution = one.process(logits, window), logits.softmax(dim=-1)[0].tolist()

    def own(slot: int, depth: int) -> int:
        return int(one.choose(processed[:, slot : slot + 1], one.length[:, None] + depth, Purpose.TARGET))

    for text, rule in RULES.items():
        policy = policy_named(text)
        verdict = policy.accept(logits if policy.raw else processed, window, one)
        kept = int(verdict.num_accepted[0])
        found = verdict.path[0, : kept + 1].tolist(), int(verdict.next[0])
        assert found == walked(rule, distribution, own, window), text


def test_what_the_target_calls_impossible_is_never_typical() -> None:
    """Also where the mass of all others, added up in float32, is less than the 1 that p=1 asks for."""
    generator = torch.Generator().manual_seed(0)
    p = torch.rand(1, 64, 9, generator=generator)
    p[..., 0] = 0.0
    p = p / p.sum(dim=-1, keepdim=True)
    assert bool((p.sum(dim=-1) < 1).any())
    window = Window.chain(torch.zeros(1).long(), torch.zeros(1, 63).long(), torch.tensor([63]))
    policy = policy_named("typical(p=1.0)")
    assert isinstance(policy, Lenient)
    assert not policy.good(p, window).any()


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("topk_agree(k=1)", [0]),
        ("topk_agree(k=2)", [0, 1]),
        ("topk_agree(k=3)", [0, 1, 2]),
        ("topk_agree(k=4)", [0, 1, 2, 3, 4]),  # of two equals neither is likelier
        ("tree_agree(m=1, k=2)", [0, 1]),
        ("tree_agree(m=2, k=2)", []),
        ("conf_threshold(tau=0.1249)", [0, 1, 2]),
        ("conf_threshold(tau=0.1251)", [0, 1]),
        ("typical(epsilon=0.1251, delta=9)", [0, 1]),
        ("typical(epsilon=0.1249, delta=9)", [0, 1, 2]),
        ("typical(epsilon=0.9, delta=0.459)", [0, 1]),
        ("typical(epsilon=0.9, delta=0.458)", [0, 1, 2]),
        ("typical(p=0.249)", [1]),
        ("typical(p=0.251)", [0, 1]),
        ("typical(p=0.751)", [0, 1, 2]),
    ],
)
def test_the_last_token_that_a_rule_keeps_and_the_first_that_it_does_not(text: str, kept: list[int]) -> None:
    """By hand, under p = 1/2, 1/4, 1/8, 1/16, 1/16: exp(-H) is 0.2726, and 1/8 is 0.4585 of it.

    The surprises are 1, 2, 3, 4 and 4 bits and the entropy is 1.875: 1/4 is the most typical, then 1/2, then 1/8.
    """
    p = torch.tensor([[[0.5, 0.25, 0.125, 0.0625, 0.0625]] * 2], dtype=torch.float64)
    policy = policy_named(text)
    assert isinstance(policy, Lenient)
    chains = [Window.chain(torch.zeros(1).long(), torch.tensor([[x]]), torch.ones(1).long()) for x in range(5)]
    assert [token for token, chain in enumerate(chains) if policy.good(p, chain)[0, 1]] == kept


@pytest.mark.parametrize("name", ["rejection", "block", "tree_rejection"])
def test_an_exact_policy_draws_each_coin_and_token_with_the_key_of_its_place_purpose_and_draw(name: str) -> None:
    """A coin belongs to the place of the proposal it judges, which for a tree is one before the node's own choice.

    Coins of ``block`` are new in every step, those of a tree's siblings differ by slot, all others have draw 0.
    """
    stream = torch.tensor([5, 6])
    one = replace(context(Reference(), stream), length=torch.tensor([3, 7]))
    slots, handed = torch.arange(3), dict[str, torch.Tensor]()

    class Watched(Reference):
        def _kept(
            self,
            distribution: torch.Tensor,
            window: Window,
            accept_key: torch.Tensor,
            residual_key: torch.Tensor,
            bonus_key: torch.Tensor,
        ) -> None:
            handed.update(distribution=distribution, accept_key=accept_key)
            handed.update(residual_key=residual_key, bonus_key=bonus_key)

        rejection_sample = block_sample = tree_sample = _kept  # type: ignore[assignment]

    window = Window.chain(torch.tensor([1, 2]), torch.tensor([[3, 4], [0, 1]]), torch.tensor([2, 1]))
    logits = torch.randn(2, 3, VOCABULARY, generator=torch.Generator().manual_seed(0))
    policy_named(name).accept(logits, window, replace(one, ops=Watched()))
    place = one.length[:, None] + slots
    coins: dict[str, tuple[torch.Tensor, int | torch.Tensor]] = {
        "rejection": (place, 0),
        "block": (place, one.length[:, None]),
        "tree_rejection": (place - 1, slots),
    }
    assert torch.equal(handed["accept_key"], Reference().noise_keys(stream, *coins[name])[Purpose.ACCEPT])
    assert torch.equal(handed["residual_key"], Reference().noise_keys(stream, place, 0)[Purpose.RESIDUAL])
    assert torch.equal(handed["bonus_key"], Reference().noise_keys(stream, place, 0)[Purpose.TARGET])
    torch.testing.assert_close(handed["distribution"], logits.exp() / logits.exp().sum(dim=2, keepdim=True))
