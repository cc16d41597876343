"""Processors equal transformers'; the noise is a function of its key and has the stated distribution."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from benchsuite.tests.rig import DEVICES
from specdec import SamplingParams, SpecdecError
from specdec.sampling import NOISE_RANGE, Purpose, StackedParams, gumbel, key, mix, process, stream, uniform


def stacked(params: list[SamplingParams]) -> StackedParams:
    """The parameters of rows as the engine stacks them."""
    return StackedParams(
        stream(torch.tensor([p.seed for p in params]), torch.arange(len(params))),
        torch.tensor([p.temperature for p in params], dtype=torch.float32),
        torch.tensor([p.top_k for p in params]),
        torch.tensor([p.top_p for p in params], dtype=torch.float32),
        greedy=all(p.temperature == 0 for p in params),
        filtered=any(p.top_k or p.top_p < 1 for p in params),
    )


@given(
    temperature=st.sampled_from([0.3, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 3, 50, 500]),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 1.0]),
    seed=st.integers(0, 1000),
)
def test_processors_give_the_distribution_of_transformers_warpers(
    temperature: float, top_k: int, top_p: float, seed: int
) -> None:
    logits = 3 * torch.randn(2, 3, 101, generator=torch.Generator().manual_seed(seed))
    ours = process(logits, stacked([SamplingParams(temperature, top_k, top_p)] * 2)).softmax(dim=-1)
    theirs = TemperatureLogitsWarper(temperature)(None, logits.view(6, 101))
    if top_k:
        theirs = TopKLogitsWarper(top_k)(None, theirs)
    if top_p < 1:
        theirs = TopPLogitsWarper(top_p)(None, theirs)
    theirs = theirs.softmax(dim=-1).view(2, 3, 101)
    assert torch.equal(ours > 0, theirs > 0)
    torch.testing.assert_close(ours, theirs)


def test_a_greedy_row_has_the_one_hot_distribution_beside_sampled_rows() -> None:
    logits = torch.randn(2, 1, 50)
    distribution = process(logits, stacked([SamplingParams(), SamplingParams(temperature=1.0)])).softmax(dim=-1)
    assert distribution[0, 0, logits[0, 0].argmax()] == 1
    torch.testing.assert_close(distribution[1], logits[1].softmax(dim=-1))


@pytest.mark.parametrize("device", DEVICES)
def test_noise_is_the_same_bits_on_every_device_and_in_every_layout(device: str) -> None:
    rows = torch.arange(4, device=device)
    streams = stream(torch.full_like(rows, 11), rows)
    positions = torch.arange(5, device=device).expand(4, 5)
    whole = key(streams, positions, Purpose.TARGET)
    for row in range(4):
        for position in range(5):
            alone = key(stream(torch.tensor([11]), torch.tensor([row])), torch.tensor([[position]]), Purpose.TARGET)
            assert alone.item() == whole[row, position].item()
    assert mix(torch.tensor([1])).item() == 0x5692161D100B05E5  # SplitMix64's finaliser of 1


def test_keys_differ_by_seed_request_position_purpose_and_draw() -> None:
    seen = set()
    for seed in range(4):
        for request in range(4):
            row = stream(torch.tensor([seed]), torch.tensor([request]))
            for position in range(4):
                for purpose in Purpose:
                    for draw in range(3):
                        seen.add(key(row, torch.tensor([[position]]), purpose, draw).item())
    assert len(seen) == 4 * 4 * 4 * len(Purpose) * 3


@pytest.mark.parametrize("skew", [0.0, 0.02])
def test_gumbel_max_draws_from_the_softmax(skew: float) -> None:
    """Chi-square over 8 tokens and 200,000 keys at a false-alarm rate of 1e-6; finds a planted skew of 0.02.

    With n draws a total variation of d increases the statistic by at least 4 n d^2 = 320. The threshold is 41.9 (7
    degrees of freedom, 1e-6) and the spread about sqrt(4 * 320) = 36.
    """
    distribution = torch.tensor([0.3, 0.25, 0.15, 0.1, 0.1, 0.05, 0.04, 0.01])
    planted = distribution + skew * torch.tensor([1.0, -1.0, 0, 0, 0, 0, 0, 0])
    draws = 200_000
    row = stream(torch.tensor([5]), torch.tensor([0]))
    keys = key(row, torch.arange(draws)[None], Purpose.TARGET)
    tokens = (planted.log() + gumbel(keys, 8)).argmax(dim=-1).flatten()
    counts = torch.bincount(tokens, minlength=8).double()
    statistic = float(((counts - draws * distribution) ** 2 / (draws * distribution)).sum())
    assert (statistic > 41.9) is (skew > 0), f"chi-square {statistic:.1f} over 7 degrees of freedom"


def test_noise_stays_in_its_range_and_uniforms_below_one() -> None:
    keys = mix(torch.arange(4000))
    noise = gumbel(keys, 500)
    assert math.isfinite(float(noise.min()))
    assert float(noise.max() - noise.min()) < NOISE_RANGE
    drawn = uniform(keys)
    assert float(drawn.min()) >= 0
    assert float(drawn.max()) < 1
    assert abs(float(drawn.mean()) - 0.5) < 0.03  # 6.5 standard deviations of a mean of 4,000


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("seed", -1),
        ("max_new_tokens", 0),
        ("temperature", 1e-7),
        ("max_new_tokens", 2.5),
        ("top_k", 1.5),
        ("eos", 5),
        ("stop", ("",)),
        ("stop", "END"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(SpecdecError, match=f"^{field} is .*; expected "):
        replace(SamplingParams(), **{field: value})  # type: ignore[arg-type]
