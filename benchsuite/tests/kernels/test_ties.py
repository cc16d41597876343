"""Of equals the first is taken, wherever a token is chosen: two backends, or two runs, would differ otherwise."""

from __future__ import annotations

from dataclasses import replace
from math import log, log1p
from typing import Any

import pytest
import torch
from torch import Tensor

from benchsuite.conformance.exact.enumerator import context
from benchsuite.conformance.models.tiny import policy_named, registry
from benchsuite.conformance.ops.cases import EQUAL_NOISE
from benchsuite.tests.rig import INTERPRETED, hashed_to, named_backend
from specdec import Request, SamplingParams, Window, sampling
from specdec.ledger import stacked
from specdec_kernels import cpu, triton
from specdec_kernels.reference import Reference
from specdec_plugins.chain import Chain

BACKENDS = ["reference", "cpu", pytest.param("triton", marks=INTERPRETED)]


def tied(size: int, width: int) -> tuple[Tensor, list[int]]:
    """Logits [1, width, size] whose largest stands at three places of each slot, and the first place of each."""
    generator = torch.Generator().manual_seed(size + width)
    places = [torch.randperm(size, generator=generator)[:3] for _ in range(width)]
    logits = torch.randn(1, width, size, generator=generator)
    for slot, at in enumerate(places):
        logits[0, slot, at] = 2.0**30  # so large that noise is rounded away
    return logits, [int(at.min()) for at in places]


@pytest.mark.parametrize("size", [3, 40, 5001])
@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("name", BACKENDS)
def test_the_first_of_equal_scores_is_drawn(name: str, width: int, size: int) -> None:
    logits, first = tied(size, width)
    keys = sampling.mix(torch.arange(width))[None]
    for key in (None, keys):
        assert registry().backend(name).sample(logits, key).tolist() == [first]


@pytest.mark.parametrize("name", [*BACKENDS, "cuda on the host"])
def test_a_coin_that_equals_the_probability_is_not_accepted(name: str) -> None:
    """Else probability 0 could accept; the next number above is accepted, and both are told apart by their last bit."""
    keys = sampling.mix(torch.arange(40)).view(4, 10)
    coins = sampling.uniform(keys)
    with named_backend(name) as ops:
        assert not ops.accept(coins, keys).any()
        assert ops.accept(coins.nextafter(torch.tensor(2.0)), keys).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", [*BACKENDS, "cuda on the host"])
def test_a_coin_that_equals_p_over_q_rejects_a_proposal(name: str) -> None:
    """Whether proposals are certain or drawn with q = 1/2; with the next number above, all are kept."""
    keys = sampling.mix(torch.arange(3 * 40)).view(3, 40, 1).expand(3, 40, 2).contiguous()
    coins = sampling.uniform(keys[0, :, 0])
    tokens, width = torch.zeros(40, 2, dtype=torch.int64), torch.full((40,), 2)
    slots = torch.tensor([-1, 0]).expand(40, 2).contiguous()
    for share, q in ((1.0, None), (0.5, torch.full((40, 1, 2), 0.5))):
        for coin, kept in ((coins, 0), (coins.nextafter(torch.tensor(2.0)), 1)):
            p = (coin * share)[:, None, None].expand(40, 2, 2).contiguous()
            with named_backend(name) as ops:
                verdict = ops.rejection_sample(p, Window(tokens, slots, width, q), *keys)
            assert verdict.num_accepted.tolist() == [kept] * 40


@pytest.mark.parametrize("name", BACKENDS)
def test_where_all_scores_are_equal_the_first_token_is_drawn(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each lane of a kernel sees several tokens, and their scores are equal too: with one program for a whole row."""
    monkeypatch.setattr(triton, "PROGRAMS", 1)
    for key in (None, torch.tensor([[7]])):
        assert registry().backend(name).sample(torch.full((1, 1, 5001), 2.0**30), key).tolist() == [[0]]


@pytest.mark.parametrize("name", [*BACKENDS, "cuda on the host"])
def test_where_no_token_is_possible_the_first_is_drawn(name: str) -> None:
    with named_backend(name) as ops:
        for key in (None, torch.tensor([[7]])):
            assert ops.sample(torch.full((1, 1, 5001), -torch.inf), key).tolist() == [[0]]


@pytest.mark.parametrize("name", BACKENDS)
def test_of_siblings_with_one_token_the_first_is_followed(name: str) -> None:
    """Slots 1 and 2 hold the chosen token, and of the children of slot 1 both."""
    window = Window(torch.tensor([[5, 6, 6, 7, 7]]), torch.tensor([[-1, 0, 0, 1, 1]]), torch.tensor([5]))
    verdict = registry().backend(name).verify_prefix(window, torch.tensor([[6, 7, 9, 3, 4]]))
    assert verdict.path.tolist() == [[0, 1, 3, -1, -1]]
    assert (verdict.num_accepted.tolist(), verdict.next.tolist()) == ([2], [3])


@pytest.mark.parametrize("name", BACKENDS)
def test_the_first_of_two_tokens_with_equal_noise_is_drawn(name: str) -> None:
    """Not only of equal logits: the sums with the noise are equal."""
    key, (first, second) = EQUAL_NOISE
    noise = sampling.gumbel(torch.tensor([key]), 64)[0]
    assert noise[first] == noise[second]
    logits = torch.full((1, 1, 64), -9.0).index_fill(2, torch.tensor([first, second]), 3.0)
    assert registry().backend(name).sample(logits, torch.tensor([[key]])).tolist() == [[first]]


@pytest.mark.parametrize("bits", [0, 1, 2, 2**32 - 1])
@pytest.mark.parametrize("name", [*BACKENDS, "cuda on the host"])
def test_the_rarest_noise_has_its_value_on_every_backend(name: str, bits: int) -> None:
    """It is added to the logit of token 9, which is drawn where the sum is the larger one by a hundredth."""
    key = torch.tensor([hashed_to(bits, 9)])
    noise = sampling.gumbel(key, 64)[0]
    assert float(noise[9]) == pytest.approx(-log(-log1p(-(bits + 0.5) / 2**32)), abs=2e-3)
    for margin, drawn in ((0.01, 9), (-0.01, 20)):
        logits = torch.full((1, 1, 64), -200.0)
        logits[0, 0, 9], logits[0, 0, 20] = 0.0, noise[9] - noise[20] - margin
        with named_backend(name) as ops:
            assert ops.sample(logits, key[:, None]).tolist() == [[drawn]]


@pytest.mark.parametrize("size", [3, 40, 5001])
@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_a_greedy_row_keeps_the_first_of_equal_logits(name: str, width: int, size: int) -> None:
    logits, first = tied(size, width)
    ways: tuple[dict[str, Any], ...] = ({}, {"logit_bias": {0: 0.5}})  # with a bias, the C++ looks at other numbers
    for more in ways:
        given = stacked([Request(0, (1,), SamplingParams(temperature=0.0, **more))], size, torch.device("cpu"))
        kept = registry().backend(name).process(logits, given, torch.zeros(1, width, 0, dtype=torch.int64))
        assert kept[0].isfinite().nonzero().tolist() == [[slot, place] for slot, place in enumerate(first)]


@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_top_p_keeps_the_first_of_equal_logits(name: str) -> None:
    given = stacked([Request(0, (1,), SamplingParams(temperature=1.0, top_p=0.301))], 300, torch.device("cpu"))
    kept = registry().backend(name).process(torch.zeros(1, 1, 300), given, None)
    assert kept[0, 0].isfinite().nonzero()[:, 0].tolist() == list(range(91))


def test_threads_that_share_rows_take_the_first_of_equals_in_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer rows than threads are cut into parts, of which each row has its own."""
    ops = registry().backend("cpu")
    if ops.chain[0].name != "cpu":
        pytest.skip("no C++ compiler")
    monkeypatch.setattr(cpu, "kernel_threads", lambda: 3)
    ties = ([100, 2000, 4900], [1700, 4000], [4999, 5000], [0, 5000])
    logits = torch.stack([torch.zeros(1, 5001).index_fill(1, torch.tensor(places), 2.0**30) for places in ties])
    for chosen in ([0], [1], [2], [3], [0, 1], [2, 0], [1, 3], [3, 2]):
        for key in (None, torch.full((len(chosen), 1), 7)):
            assert ops.sample(logits[chosen], key).tolist() == [[ties[row][0]] for row in chosen]


def test_a_greedy_draft_proposes_the_first_of_equal_logits() -> None:
    asked = context(Reference())
    greedy = replace(asked, params=replace(asked.params, greedy=True, temperature=torch.zeros(1)))
    logits = torch.zeros(1, 1, 9).index_fill(2, torch.tensor([3, 7]), 1.0)
    assert Chain(greedy, 9).propose(logits).tolist() == [[3]]
    assert Chain(greedy, 90, torch.arange(9) * 10).propose(logits).tolist() == [[30]]


def test_the_longest_prefix_goes_through_the_first_of_equal_logits() -> None:
    logits = torch.zeros(1, 2, 9).index_fill(2, torch.tensor([3, 7]), 1.0)
    for token, accepted in ((3, 1), (7, 0)):
        window = Window.chain(torch.tensor([0]), torch.tensor([[token]]), torch.tensor([1]))
        verdict = policy_named("longest_prefix").accept(logits, window, context(Reference()))
        assert verdict.num_accepted.tolist() == [accepted]
