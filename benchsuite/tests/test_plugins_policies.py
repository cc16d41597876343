"""Lossy policies accept what their rules say, node by node, and nothing that lies just beyond."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchsuite.prove.enumerator import context
from benchsuite.prove.tiny import policy_named
from specdec import Window
from specdec_kernels.reference import Reference
from specdec_plugins.lenient import Lenient

pytestmark = pytest.mark.usefixtures("one_thread")

VOCABULARY = 5
Rule = Callable[[list[float], int, int, Window], bool]
"""Whether a node is good: p at its parent, its token, its slot, its window of one row."""


def surprise(p: list[float], token: int) -> float:
    """How far a token's surprise is from the entropy."""
    entropy = -sum(x * math.log(x) for x in p if x)
    return abs(-math.log(p[token]) - entropy) if p[token] else math.inf


def votes(window: Window, slot: int) -> int:
    """How many valid nodes of a node's depth propose its token."""
    tokens, depth = window.tokens[0].tolist(), window.depth[0].tolist()
    return sum(
        (tokens[i], depth[i]) == (tokens[slot], depth[slot]) for i in range(1, int(window.width[0]))
    )


def likelier(p: list[float], token: int) -> int:
    """How many tokens are likelier."""
    return sum(x > p[token] for x in p)


RULES: dict[str, Rule] = {
    "conf_threshold(tau=0.25)": lambda p, token, slot, window: p[token] >= 0.25,
    "topk_agree(k=1)": lambda p, token, slot, window: likelier(p, token) < 1,
    "topk_agree(k=3)": lambda p, token, slot, window: likelier(p, token) < 3,
    "tree_agree(m=1, k=2)": lambda p, token, slot, window: likelier(p, token) < 2,
    "tree_agree(m=2, k=3)": lambda p, token, slot, window: votes(window, slot) >= 2 and likelier(p, token) < 3,
    "typical(epsilon=0.5, delta=0.75)": lambda p, token, slot, window: p[token]
    > min(0.5, 0.75 * math.exp(sum(x * math.log(x) for x in p if x))),
    "typical(p=0.5)": lambda p, token, slot, window: p[token] > 0
    and sum(x for other, x in enumerate(p) if surprise(p, other) < surprise(p, token)) < 0.5,
}
"""The rules of docs/strategies.md, one node at a time."""


def walked(rule: Rule, p: list[list[float]], window: Window) -> tuple[list[int], int]:
    """The slots that are accepted by going to the first good child, and the token that follows: here the likeliest.

    A child that is not good and has the target's own token is kept as that token.
    """
    tokens, parents, at, path = window.tokens[0].tolist(), window.parents[0].tolist(), 0, [0]
    while True:
        children = [i for i in range(1, int(window.width[0])) if parents[i] == at]
        own = max(range(VOCABULARY), key=lambda token: (p[at][token], -token))
        good = [i for i in children if rule(p[at], tokens[i], i, window)] or [i for i in children if tokens[i] == own]
        if not good:
            return path, own
        at = good[0]
        path.append(at)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[list[float]], Window]:
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


@pytest.mark.parametrize("text", RULES)
@given(cases())
def test_a_lossy_policy_follows_its_rule_from_good_child_to_good_child(
    text: str, case: tuple[list[list[float]], Window]
) -> None:
    """Float64, so that the sixteenths are exact; the row is greedy, so that what follows is the likeliest token."""
    p, window = case
    one = context(Reference())
    greedy = replace(one, params=replace(one.params, temperature=torch.zeros(1), greedy=True))
    logits = torch.tensor([p], dtype=torch.float64).log()
    verdict = policy_named(text).accept(logits, window, greedy)
    path, following = walked(RULES[text], logits.softmax(dim=-1)[0].tolist(), window)
    kept = int(verdict.num_accepted[0])
    assert verdict.path[0, : kept + 1].tolist() == path
    assert int(verdict.next[0]) == following


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

    The surprises are 1, 2, 3, 4 and 4 bits and the entropy is 1.875, so that 1/4 is the most typical, then 1/2, then 1/8.
    """
    p = torch.tensor([[[0.5, 0.25, 0.125, 0.0625, 0.0625]] * 2], dtype=torch.float64)
    policy = policy_named(text)
    assert isinstance(policy, Lenient)
    chains = [Window.chain(torch.zeros(1).long(), torch.tensor([[x]]), torch.ones(1).long()) for x in range(5)]
    assert [token for token, chain in enumerate(chains) if policy.good(p, chain)[0, 1]] == kept
