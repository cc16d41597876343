"""The exact law of whole runs: engine, arena, draft, policy, processors and stops, every outcome enumerated.

Nothing is sampled and nothing is mocked but the two laws and the dice.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction
from math import prod
from types import SimpleNamespace

import pytest

from benchsuite.conftest import registry
from benchsuite.enumerator import Script, Shape, chain, completions
from benchsuite.tabular import Table, TableDraft, Tabular, table
from specdec import Engine, Request, SamplingParams

pytestmark = pytest.mark.usefixtures("one_thread")
Outputs = tuple[tuple[int, ...], ...]
PROMPTS = ((0, 1), (1,), (1, 1, 0))

POLICIES = ("rejection", "block", "tree_rejection", "match")
FORK = Shape((-1, 0, 0))
FORK_DEEP = Shape((-1, 0, 0, 1, 2))


def outputs(
    script: Script, policy: str, laws: tuple[Table, Table], vocabulary: int, shape: Shape, certain: bool,
    requests: Sequence[Request], rows: int, span: int | None = None,
) -> Outputs:  # fmt: skip
    """One run of the real engine with scripted dice."""
    target = Tabular(laws[0], vocabulary, script, span)
    entry, options = registry().parse("policy", policy)
    controller = registry().entry("controller", "fixed").factory(SimpleNamespace(max_length=12), len(shape.parents) - 1)
    engine = Engine(
        target, draft=TableDraft(laws[1], shape, certain), policy=entry.factory(None, **options),
        controller=controller, ops=script, max_rows=rows, max_length=12,
    )  # fmt: skip
    return tuple(done.tokens for done in engine.run(requests))


def warped(law: Sequence[float], params: SamplingParams) -> list[float]:
    """A law after temperature, top-k, top-p, written down once more from their definitions."""
    left = [share ** (1 / params.temperature) for share in law]
    order = sorted(range(len(left)), key=lambda token: -left[token])
    for token in order[params.top_k or len(order) :]:
        left[token] = 0.0
    mass, before = sum(left), 0.0
    for token in order:
        here, left[token] = left[token], left[token] if before < params.top_p * mass else 0.0
        before += here
    return [share / sum(left) for share in left]


def chain_rule(law: Table, request: Request, vocabulary: int) -> dict[tuple[int, ...], float]:
    """The law of a request's whole output under the target alone."""
    params = request.params
    found: dict[tuple[int, ...], float] = {}
    open_: dict[tuple[int, ...], float] = {(): 1.0}
    while open_:
        longer: dict[tuple[int, ...], float] = {}
        for out, weight in open_.items():
            for token, share in enumerate(warped(law((*request.prompt, *out)), params)):
                ends = token in params.eos or len(out) + 1 == params.max_new_tokens
                (found if ends else longer)[*out, token] = weight * share
        open_ = longer
    return {out: weight for out, weight in found.items() if weight}


def distance(
    policy: str, vocabulary: int, shape: Shape, requests: Sequence[Request], *, certain: bool = False, rows: int = 1,
    zeros: bool = False, span: int | None = None, seed: int = 0,
) -> float:  # fmt: skip
    """Total variation between the engine's outputs and independent runs of the target alone."""
    laws = table(("p", seed), vocabulary, zeros=zeros), table(("q", seed), vocabulary, zeros=zeros)
    got = completions(lambda s: outputs(s, policy, laws, vocabulary, shape, certain, requests, rows, span))

    def seen(history: tuple[int, ...]) -> Sequence[float]:
        return laws[0](history if span is None else history[-span:])

    alone = [chain_rule(seen, request, vocabulary) for request in requests]
    expected = {
        outs: prod(law[out] for law, out in zip(alone, outs, strict=True)) for outs in itertools.product(*alone)
    }
    assert abs(float(sum(got.values())) - 1) < 1e-12
    every = got.keys() | expected.keys()
    return sum(abs(float(got.get(outs, 0)) - expected.get(outs, 0.0)) for outs in every) / 2


def one(tokens: int, **params: object) -> list[Request]:
    """One request of so many tokens at temperature 1."""
    return [Request(0, PROMPTS[0], SamplingParams(**{"temperature": 1.0, "max_new_tokens": tokens, **params}))]  # type: ignore[arg-type]


@pytest.mark.parametrize("certain", [False, True], ids=["drawn", "certain"])
@pytest.mark.parametrize("policy", POLICIES)
def test_an_output_has_the_targets_law(policy: str, certain: bool) -> None:
    assert distance(policy, 2, chain(2), one(3), certain=certain) < 1e-12
    assert distance(policy, 3, chain(1), one(2), certain=certain, zeros=True) < 1e-12


PROCESSORS = {
    "temperature": {"temperature": 0.5},
    "top-k": {"top_k": 2},
    "top-p": {"top_p": 0.7},
    "top-k, top-p": {"top_k": 2, "top_p": 0.6},
    "all": {"temperature": 2.0, "top_k": 2, "top_p": 0.8},
}


@pytest.mark.parametrize("params", PROCESSORS.values(), ids=PROCESSORS)
@pytest.mark.parametrize("policy", POLICIES)
def test_an_output_has_the_processed_law(policy: str, params: dict[str, float]) -> None:
    assert distance(policy, 3, chain(1), one(2, **params)) < 1e-12


@pytest.mark.parametrize("policy", POLICIES)
def test_an_output_that_may_end_early_has_the_targets_law(policy: str) -> None:
    assert distance(policy, 2, chain(2), one(3, eos=(1,))) < 1e-12
    assert distance(policy, 3, chain(1), one(2, eos=(0, 2))) < 1e-12


@pytest.mark.parametrize("shape", [FORK, FORK_DEEP], ids=["siblings", "a child each"])
@pytest.mark.parametrize("policy", ["tree_rejection", "match"])
def test_an_output_drafted_by_trees_has_the_targets_law(policy: str, shape: Shape) -> None:
    assert distance(policy, 2, shape, one(3)) < 1e-12


@pytest.mark.parametrize("policy", POLICIES)
def test_rows_of_a_batch_are_independent(policy: str) -> None:
    """Three requests in two rows: one waits, and takes the place of the first that ends."""
    requests = [
        Request(i, PROMPTS[i], SamplingParams(temperature=1.0, max_new_tokens=n)) for i, n in enumerate((1, 2, 1))
    ]
    assert distance(policy, 2, chain(1), requests, rows=2) < 1e-12


@pytest.mark.parametrize("policy", POLICIES)
def test_a_sliding_layer_sees_its_span_and_the_law_is_the_targets(policy: str) -> None:
    assert distance(policy, 2, chain(2), one(3), span=2) < 1e-12


@pytest.mark.parametrize("certain", [False, True], ids=["drawn", "certain"])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_law_of_fractions_is_met_exactly(policy: str, certain: bool) -> None:
    """Total variation 0: where laws are fractions, each decision's probability is one, and float64 says which."""
    laws = table("p", 2), table("q", 2)
    requests = one(3)
    got = completions(lambda s: outputs(s, policy, laws, 2, chain(2), certain, requests, 1), exact=True)
    expected: dict[Outputs, Fraction] = {}
    for out in itertools.product(range(2), repeat=3):
        steps = (laws[0]((*PROMPTS[0], *out[:i]))[token] for i, token in enumerate(out))
        expected[(out,)] = prod(map(Fraction, steps), start=Fraction(1))
    assert got == expected
