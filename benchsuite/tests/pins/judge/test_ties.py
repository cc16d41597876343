"""Pins of test_ties.py: tests that read what is private."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from benchsuite.judge.ties import Judge
from specdec import Request, SamplingParams


class _Arm:
    """An arm whose logits after any prefix are given."""

    def __init__(self, *logits: float) -> None:
        self._logits = torch.tensor(logits) if logits else None

    def tokens(self, requests: Sequence[Request]) -> list[tuple[int, ...]]:
        return [()] * len(requests)

    def logits_at(self, requests: Sequence[Request], request: int, index: int) -> Tensor | None:
        return self._logits


def test_a_difference_says_what_each_arm_and_the_model_saw_and_the_first_reason_against_a_tie() -> None:
    judge = object.__new__(Judge)
    judge._bound = 0.5
    judge.logits = lambda prefix: torch.tensor([0.0, 1.0, 1.1])  # type: ignore[method-assign]
    request = Request(7, (0, 1), SamplingParams(max_new_tokens=4))
    ends = "one output ends where the other goes on"
    for plain, other, outputs, expected in (
        (_Arm(0.0, 1.2, 1.1), _Arm(0.1, 1.0, 1.3), ((0, 1), (0, 2)), ""),
        (_Arm(), _Arm(0.1, 1.0, 1.3), ((0, 1), (0, 2)), "plain did not repeat its own output"),
        (_Arm(0.0, 1.2, 1.1), _Arm(), ((0, 1), (0, 2)), "the other did not repeat its own output"),
        (_Arm(9.0, 1.2, 1.1), _Arm(), ((0, 1), (0, 2)), "plain's logits lie 9.0e+00 from the unmodified model's"),
        (_Arm(0.0, 1.2, 1.1), _Arm(0.0, 1.0, 2.1), ((0, 1), (0, 2)), "the other's logits lie 1.0e+00 from the"),
        (_Arm(0.0, 1.0, 1.1), _Arm(0.1, 1.0, 1.3), ((0, 1), (0, 2)), "plain's token does not follow from its own"),
        (_Arm(0.0, 1.2, 1.1), _Arm(0.1, 1.2, 1.1), ((0, 1), (0, 2)), "the other's token does not follow from its own"),
        (_Arm(0.0, 1.2, 1.1), _Arm(0.1, 1.0, 1.3), ((0, 1), (0,)), ends),
        (_Arm(0.0, 1.2, 1.1), _Arm(0.1, 1.0, 1.3), ((0,), (0, 2)), ends),
    ):
        found = judge._judge([request], request, plain, other, outputs, 1, "")
        assert found.reason.startswith(expected or "both within the bound, each token follows from its arm's logits")
        assert (found.request, found.index, found.bound, found.tie) == (7, 1, 0.5, not expected)
        assert found.tokens == tuple(output[1] if len(output) > 1 else -1 for output in outputs)
        if expected == ends:
            assert (found.plain, found.other, found.reference) == (None, None, (0.0, 0.0))
        else:
            assert found.reference == pytest.approx((1.0, 1.1))
            for arm, pair in ((plain, found.plain), (other, found.other)):
                assert pair == (None if arm._logits is None else pytest.approx(arm._logits[1:].tolist()))
    given = judge._judge([request], request, _Arm(), _Arm(), ((0, 1), (0, 2)), 1, "said before")
    assert (given.reason, given.tie) == ("said before", False)
