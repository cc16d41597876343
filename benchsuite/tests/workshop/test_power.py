"""Distributions tested by samples where they cannot be enumerated, with the stated power.

Each round emits up to three tokens. The false-alarm probability is 1e-6 for each policy. A mass of 0.01 that moves from
the likelier half of the distribution to the other is found with probability 0.99 (``samples.power``).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from benchsuite.conformance.exact.enumerator import Shape
from benchsuite.conformance.models.tiny import policy_named, registry
from benchsuite.judge.fidelity import evenness
from benchsuite.tests.faulty_noise import SharedCoin
from benchsuite.workshop.machines.samples import CHAIN, FALSE_ALARM, Rounds, power
from specdec_kernels.reference import Reference

pytestmark = pytest.mark.slow

ROUNDS, VOCABULARY, SHIFT = 220_000, 64, 0.01
ON_GPU = [pytest.mark.cuda, pytest.mark.gpu]
BACKENDS = [
    ("reference", "cpu"),
    ("cpu", "cpu"),
    ("triton", "cuda"),
    ("cuda", "cuda"),
]
SIBLINGS = Shape((-1, 0, 0))
WAYS = [
    ("rejection", CHAIN),
    ("block", CHAIN),
    ("tree_rejection", CHAIN),
    ("tree_rejection", SIBLINGS),
    ("match", CHAIN),
]


def _distributions(
    shape: Shape, dtype: torch.dtype, device: str = "cpu", vocabulary: int = VOCABULARY
) -> tuple[Tensor, Tensor]:
    """Logits of a target, decreasing as word frequencies do, and of a draft: the same with noise, for siblings twice
    the target's. Of a draft that is so sure both siblings are often refused, which shows whether they share a coin."""
    generator = torch.Generator().manual_seed(1)
    target = -torch.arange(1, vocabulary + 1).float().log() * 1.1
    draft = 2 * target if shape == SIBLINGS else target + torch.randn(vocabulary, generator=generator)
    return target.to(device, dtype), draft.to(device, dtype)


def unevenness(bins: Tensor) -> float:
    """The smallest p-value of all depths."""
    return min(evenness(depth) for depth in bins.tolist())


def test_a_shift_of_one_in_a_hundred_is_found_with_probability_0_99() -> None:
    assert power(ROUNDS, SHIFT) > 0.99
    assert power(ROUNDS, SHIFT / 2) < 0.1, "what is claimed is not sharp"
    assert power(ROUNDS, 1e-9) == pytest.approx(FALSE_ALARM, rel=1e-3)


def _cases() -> Iterator[Any]:
    """Each two of backend, way and dtype together; each three with --specdec-deep."""
    dtypes = (torch.float32, torch.bfloat16)
    for (i, backend), (j, way), (k, dtype) in itertools.product(
        enumerate(BACKENDS), enumerate(WAYS), enumerate(dtypes)
    ):
        marks = [*(ON_GPU if backend[1] == "cuda" else ()), *([pytest.mark.deep] * ((i + j + k) % 2))]
        names = (backend[0], way[0], str(way[1].parents[-1]), str(dtype).removeprefix("torch."))
        yield pytest.param(*backend, *way, dtype, marks=marks, id="-".join(names))


@pytest.mark.parametrize(("backend", "device", "name", "shape", "dtype"), [*_cases()])
def test_emitted_tokens_have_the_targets_distribution(
    backend: str, device: str, name: str, shape: Shape, dtype: torch.dtype
) -> None:
    rounds = Rounds(policy_named(name), registry().backend(backend), *_distributions(shape, dtype, device), shape)
    assert unevenness(rounds.bins(ROUNDS)) > FALSE_ALARM


@pytest.mark.parametrize(("name", "shape"), WAYS, ids=lambda way: way if isinstance(way, str) else str(way.parents[-1]))
def test_a_planted_skew_of_one_in_a_hundred_is_found(name: str, shape: Shape) -> None:
    """The policy gets a target from which a mass of 0.01 has moved, and is compared with the true target.

    Of few tokens: what the test finds depends on the number of rounds and bins alone.
    """
    target, draft = _distributions(shape, torch.float32, vocabulary=16)
    distribution = target.softmax(dim=-1)
    likelier = distribution.cumsum(0) <= 0.5
    skewed = torch.where(
        likelier,
        distribution * (1 - SHIFT / distribution[likelier].sum()),
        distribution * (1 + SHIFT / distribution[~likelier].sum()),
    )
    assert float((skewed - distribution).abs().sum()) / 2 == pytest.approx(SHIFT, rel=1e-4)
    rounds = Rounds(policy_named(name), registry().backend("reference"), skewed.log(), draft, shape)
    assert unevenness(rounds.bins(ROUNDS, distribution)) < FALSE_ALARM


def test_siblings_that_share_a_coin_are_found() -> None:
    rounds = Rounds(SharedCoin(None), Reference(), *_distributions(SIBLINGS, torch.float32), SIBLINGS)  # type: ignore[arg-type]
    assert unevenness(rounds.bins(ROUNDS)) < FALSE_ALARM
