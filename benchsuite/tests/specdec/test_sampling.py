"""The noise is a function of its key and has the stated distribution."""

from __future__ import annotations

import math

import pytest
import torch

from benchsuite.tests.rig import DEVICES
from specdec.sampling import NOISE_RANGE, Purpose, gumbel, key, mix, stream, uniform
from specdec_kernels.reference import Reference


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
    """Neighbours, and numbers that differ in high bits alone; draws are below 2**32."""
    seeds, requests, positions, draws = (
        torch.tensor([0, 1, 2, 3, *(3 + 2**bit for bit in bits)])
        for bits in ((16, 31, 32, 62), (8, 16, 32), (6, 10, 20), (8, 16, 31))
    )
    streams = torch.cat([stream(seed, requests) for seed in seeds])
    keys = [
        key(streams, positions.expand(len(streams), -1), purpose, int(draw)) for purpose in Purpose for draw in draws
    ]
    made = torch.stack(keys)
    assert len(made.unique()) == made.numel() == 8 * 7 * 7 * len(Purpose) * 7


def test_the_keys_of_all_purposes_are_those_of_each_alone() -> None:
    rows, position = torch.arange(3), torch.arange(6).view(3, 2)
    for draw in (0, 7, rows[:, None]):
        keys = Reference().noise_keys(rows, position, draw)
        assert all(torch.equal(keys[purpose], key(rows, position, purpose, draw)) for purpose in Purpose)


@pytest.mark.slow
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


@pytest.mark.slow
def test_noise_stays_in_its_range_and_uniforms_below_one() -> None:
    keys = mix(torch.arange(4000))
    noise = gumbel(keys, 500)
    assert math.isfinite(float(noise.min()))
    assert float(noise.max() - noise.min()) < NOISE_RANGE
    drawn = uniform(keys)
    assert float(drawn.min()) >= 0
    assert float(drawn.max()) < 1
    assert abs(float(drawn.mean()) - 0.5) < 0.03  # 6.5 standard deviations of a mean of 4,000
