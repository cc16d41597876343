"""The bits of the noise, against SplitMix64 in Python's whole numbers and a Gumbel in double precision."""

from __future__ import annotations

import math

import pytest
import torch

from specdec.sampling import NOISE_RANGE, Purpose, gumbel, key, mix, stream, uniform

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
FIRST = 0xBF58476D1CE4E5B9
SECOND = 0x94D049BB133111EB
WORDS = (0, 1, 2, 3, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1, GOLDEN, 0x0123456789ABCDEF)


def _mixed(x: int) -> int:
    """The finaliser as its authors write it, over numbers without a sign."""
    x = (x ^ x >> 30) * FIRST & MASK
    x = (x ^ x >> 27) * SECOND & MASK
    return x ^ x >> 31


def _unmixed(x: int) -> int:
    """The number whose finaliser is ``x``."""
    x = x ^ x >> 31 ^ x >> 62
    x = x * pow(SECOND, -1, 2**64) & MASK
    x = x ^ x >> 27 ^ x >> 54
    x = x * pow(FIRST, -1, 2**64) & MASK
    return x ^ x >> 30 ^ x >> 60


def _signed(x: int) -> int:
    return (x & MASK) - (2**64 if (x & MASK) >> 63 else 0)


def _streamed(seed: int, request: int) -> int:
    return _mixed(_mixed(seed + GOLDEN & MASK) + request * GOLDEN & MASK)


def _keyed(of: int, position: int, purpose: int, draw: int) -> int:
    return _mixed(_mixed(of + position * GOLDEN & MASK) ^ (purpose * 2**32 + draw))


def _drawn(bits: int, token: int) -> int:
    """A key for which a token's noise has these 32 bits."""
    return _signed(_unmixed(bits << 32) - (token + 1) * GOLDEN)


def test_the_finaliser_is_that_of_splitmix_and_can_be_undone() -> None:
    found = mix(torch.tensor([_signed(word) for word in WORDS]))
    assert found.tolist() == [_signed(_mixed(word)) for word in WORDS]
    assert [_unmixed(_mixed(word)) for word in WORDS] == list(WORDS)
    # The first numbers of the published generator with the state 0.
    assert [_mixed(count * GOLDEN & MASK) for count in (1, 2)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]


def test_a_row_s_stream_is_made_of_its_seed_and_its_request() -> None:
    pairs = [(0, 0), (0, 1), (1, 0), (7, 3), (2**63 - 1, 2), (5, 2**40)]
    found = stream(*(torch.tensor(side) for side in zip(*pairs, strict=True)))
    assert found.tolist() == [_signed(_streamed(*pair)) for pair in pairs]


def test_the_purposes_are_numbered_from_the_target_on() -> None:
    assert {purpose.name: int(purpose) for purpose in Purpose} == {"TARGET": 0, "DRAFT": 1, "ACCEPT": 2, "RESIDUAL": 3}


@pytest.mark.parametrize("purpose", list(Purpose))
@pytest.mark.parametrize("draw", [0, 1, 6, 2**32 - 1])
def test_a_key_holds_its_purpose_above_the_32_bits_of_its_draw(purpose: Purpose, draw: int) -> None:
    rows, positions = [_streamed(3, 0), _streamed(3, 1)], [[0, 1, 5], [2, 900, 2**20]]
    expected = [
        [_signed(_keyed(row, position, int(purpose), draw)) for position in line]
        for row, line in zip(rows, positions, strict=True)
    ]
    streams = torch.tensor([_signed(row) for row in rows])
    assert key(streams, torch.tensor(positions), purpose, draw).tolist() == expected
    if draw == 0:
        assert key(streams, torch.tensor(positions), purpose).tolist() == expected


def test_a_gumbel_is_that_of_the_upper_32_bits_of_its_token_s_number() -> None:
    keys = [_streamed(seed, 4) for seed in range(40)]
    found = gumbel(torch.tensor([_signed(one) for one in keys]), 30)
    for one, line in zip(keys, found.tolist(), strict=True):
        for token, noise in enumerate(line):
            bits = _mixed(one + (token + 1) * GOLDEN & MASK) >> 32
            assert noise == pytest.approx(-math.log(-math.log1p(-(bits + 0.5) / 2**32)), abs=2e-5)
    ids = torch.tensor([29, 0, 7])
    assert torch.equal(gumbel(torch.tensor([_signed(one) for one in keys]), ids), found[:, ids])


@pytest.mark.parametrize("token", [0, 1, 40])
def test_the_smallest_and_the_largest_noise_are_those_of_all_bits_and_of_none(token: int) -> None:
    least = gumbel(torch.tensor([_drawn(2**32 - 1, token)]), 41)[0, token].item()
    most = gumbel(torch.tensor([_drawn(0, token)]), 41)[0, token].item()
    second = gumbel(torch.tensor([_drawn(1, token)]), 41)[0, token].item()
    assert least == pytest.approx(-math.log(22.9), abs=1e-6)
    assert most == pytest.approx(math.log(2**33), abs=1e-5)
    assert second == pytest.approx(math.log(2**33 / 3), abs=1e-5)
    # A token that is further below the top logit cannot be drawn; the bound is no more than a tenth too large.
    assert 0 < NOISE_RANGE - (most - least) < 0.1


def test_a_uniform_is_the_upper_24_bits_of_its_key_s_number_and_below_one() -> None:
    keys = [*(_streamed(seed, 1) for seed in range(20)), *(_unmixed(bits << 40) - GOLDEN for bits in (0, 1, 2**24 - 1))]
    found = uniform(torch.tensor([_signed(one) for one in keys]))
    assert found.tolist() == [(_mixed(one + GOLDEN & MASK) >> 40) / 2**24 for one in keys]
    assert found[-3:].tolist() == [0.0, 2**-24, 1 - 2**-24]
