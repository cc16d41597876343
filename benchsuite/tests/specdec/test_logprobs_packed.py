"""Log-probabilities of a window against sums over Python's floats, and the numbers in which a step's read carries
them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from specdec import Request, SamplingParams
from specdec.ledger import stacked
from specdec.logprobs import TokenLogprobs, pack, unpack
from specdec.messages import Context, Verdict, Window
from specdec_kernels.reference import Reference

LOGITS = [
    [[0.0, 1.0, 2.0, 4.0], [3.0, -1.0, 0.5, 0.0], [0.25, 5.0, 1.0, -2.0], [1.0, 2.0, -3.0, 0.0]],
    [[-1.0, 0.0, 1.5, 1.0], [2.0, 2.5, -2.0, 0.0], [1.0, 0.0, 3.0, 2.0], [0.0, -4.0, 1.0, 6.0]],
]
NEVER = float("-inf")


def _context(params: list[SamplingParams]) -> Context:
    requests = [Request(row, (1, 2), one) for row, one in enumerate(params)]
    tokens, length = torch.tensor([[1, 2, 0, 0, 0]] * len(params)), torch.tensor([2] * len(params))
    return Context(
        request=torch.arange(len(params)),
        tokens=tokens,
        history=tokens.numpy(),
        length=length,
        length_host=length.numpy(),
        max_proposals=length,
        max_proposals_host=length.numpy(),
        params=stacked(requests, 4, torch.device("cpu")),
        ops=Reference(),
        coupled=False,
    )


def _chances(logits: list[float]) -> list[float]:
    total = math.log(sum(math.exp(one) for one in logits))
    return [one - total for one in logits]


def _ranked(chances: list[float], count: int) -> Any:
    order = sorted(range(4), key=lambda token: -chances[token])[:count]
    return tuple((token, pytest.approx(chances[token], abs=1e-5)) for token in order)


def _told(token: int, raw: list[float], processed: list[float], count: int) -> Any:
    """What is to be said of a token whose raw and processed logits these are."""
    raw, processed = _chances(raw), _chances(processed)
    return (
        pytest.approx(raw[token], abs=1e-5),
        pytest.approx(processed[token], abs=1e-5),
        _ranked(raw, count),
        _ranked(processed, count),
    )


# A tree: the root's children are slots 1 and 2, slot 3 continues slot 2.
PARENTS = torch.tensor([[-1, 0, 0, 2]] * 2)
TREE = Window(torch.tensor([[2, 0, 3, 1], [2, 0, 2, 3]]), PARENTS, torch.tensor([4, 4]))
VERDICT = Verdict(torch.tensor([[0, 2, 3], [0, 1, -1]]), torch.tensor([2, 1]), torch.tensor([1, 2]))


@pytest.mark.parametrize("wanted", [0, 1, 3])
@pytest.mark.parametrize("count", [3, 4, 9])
def test_each_emitted_token_has_the_chances_of_the_slot_that_it_follows(wanted: int, count: int) -> None:
    """Of a greedy row the chances after the bias, of a sampled one those at its temperature; for as many tokens as are
    asked for, at most the vocabulary."""
    params = [SamplingParams(logit_bias={0: 1.75}), SamplingParams(temperature=0.5)]
    packed = pack(_context(params), torch.tensor(LOGITS), TREE, VERDICT, count)
    assert packed.dtype == torch.int64
    assert packed.shape == (2, 3 * (2 + 4 * min(count, 4)))
    found = [unpack(row, 3, wanted)[:emitted] for row, emitted in zip(packed.numpy(), (3, 2), strict=True)]
    first = [[one + 1.75 * (token == 0) for token, one in enumerate(LOGITS[0][slot])] for slot in (0, 2, 3)]
    second = [[one / 0.5 for one in LOGITS[1][slot]] for slot in (0, 1)]
    expected = [
        [
            _told(token, LOGITS[0][slot], after, wanted)
            for token, slot, after in zip((3, 1, 1), (0, 2, 3), first, strict=True)
        ],
        [
            _told(token, LOGITS[1][slot], after, wanted)
            for token, slot, after in zip((0, 2), (0, 1), second, strict=True)
        ],
    ]
    for ours, theirs in zip(found, expected, strict=True):
        assert [(one.raw, one.processed, one.top_raw, one.top_processed) for one in ours] == theirs


def test_a_penalty_counts_the_accepted_tokens_before_each_token_and_not_the_token_itself() -> None:
    params = [SamplingParams(frequency_penalty=1.0)] * 2
    packed = pack(_context(params), torch.tensor(LOGITS), TREE, VERDICT, 4)
    found = [one.processed for one in unpack(packed.numpy()[0], 3, 0)]
    emitted, slots = (3, 1, 1), (0, 2, 3)
    for place, (token, slot) in enumerate(zip(emitted, slots, strict=True)):
        logits = [one - emitted[:place].count(number) for number, one in enumerate(LOGITS[0][slot])]
        assert found[place] == pytest.approx(_chances(logits)[token], abs=1e-5)


def test_a_forbidden_token_has_no_chance_after_the_processors() -> None:
    params = [SamplingParams(bad_words=((3,),), temperature=1.0)] * 2
    packed = pack(_context(params), torch.tensor(LOGITS), TREE, VERDICT, 4)
    [first, *_] = unpack(packed.numpy()[0], 3, 4)
    assert first.processed == NEVER
    assert first.top_processed[-1] == (3, NEVER)
    assert first.as_json()["processed"] is None


def test_a_read_carries_floats_by_their_bits() -> None:
    """Of each token the raw numbers, then the processed ones: its chance, the ids of two tokens, their chances."""

    def bits(*values: float) -> list[int]:
        return [int(one) for one in np.array(values, dtype=np.float32).view(np.int32)]

    row = [
        *(*bits(-0.5), 7, 9, *bits(-0.25, -1.5)),
        *(*bits(-0.75), 9, 4, *bits(-0.125, NEVER)),
        *(*bits(-3.5), 1, 2, *bits(-2.25, -3.25)),
        *(*bits(NEVER), 5, 6, *bits(-4.25, -5.25)),
    ]
    whole = [
        TokenLogprobs(-0.5, -0.75, ((7, -0.25), (9, -1.5)), ((9, -0.125), (4, NEVER))),
        TokenLogprobs(-3.5, NEVER, ((1, -2.25), (2, -3.25)), ((5, -4.25), (6, -5.25))),
    ]
    packed = np.array(row, dtype=np.int64)
    for wanted in (0, 1, 2):
        assert unpack(packed, 2, wanted) == [
            TokenLogprobs(one.raw, one.processed, one.top_raw[:wanted], one.top_processed[:wanted]) for one in whole
        ]
    assert [one.as_json() for one in whole] == [
        {
            "raw": -0.5,
            "processed": -0.75,
            "top_raw": [[7, -0.25], [9, -1.5]],
            "top_processed": [[9, -0.125], [4, None]],
        },
        {
            "raw": -3.5,
            "processed": None,
            "top_raw": [[1, -2.25], [2, -3.25]],
            "top_processed": [[5, -4.25], [6, -5.25]],
        },
    ]
