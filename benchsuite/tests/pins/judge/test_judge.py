"""Pins of test_judge.py: tests that read what is private."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from benchsuite.judge import fidelity, ties
from benchsuite.judge.ties import Difference, Judge
from benchsuite.tests.rig import Make
from specdec import Request, SamplingParams

PLAINS, OTHERS, REST = 3, 5, 9
"""The token that plain takes, the one that the other arm takes, and one that both take elsewhere."""


ASKED = Request(4, (1, 2), SamplingParams(max_new_tokens=6))


CLOSE = "both within the bound, each token follows from its arm's logits"


ENDED = "one output ends where the other goes on"


@dataclass
class _Arm:
    """Takes its own token at ``places`` and the rest elsewhere; its logits are the same at every place."""

    own: int
    logits: Tensor | None
    places: tuple[int, ...] = ()
    asked: int = 0

    def tokens(self, requests: Sequence[Request]) -> list[tuple[int, ...]]:
        [request] = requests
        done = len(request.prompt) - len(ASKED.prompt)
        assert (request.id, request.params.max_new_tokens) == (ASKED.id, 6 - done)
        # Both arms continue what plain took.
        assert request.prompt == (1, 2, *(PLAINS if place in self.places else REST for place in range(done)))
        self.asked += 1
        return [tuple(self.own if place in self.places else REST for place in range(done, 6))]

    def logits_at(self, requests: Sequence[Request], request: int, index: int) -> Tensor | None:
        assert request == ASKED.id
        return self.logits


def _logits(**values: float) -> Tensor:
    """Logits of twelve tokens, 0 but for plain's, the other's and the last one's."""
    logits = torch.zeros(12)
    for place, name in ((PLAINS, "plains"), (OTHERS, "others"), (11, "last")):
        logits[place] = values.get(name, 0.0)
    return logits


REFERENCE = _logits(plains=4.0, others=4.0)


PLAIN = _logits(plains=4.25, others=4.0)


OTHER = _logits(plains=4.0, others=4.25)


@pytest.fixture
def level_judge(assemble: Make, monkeypatch: pytest.MonkeyPatch) -> Judge:
    """A judge with a bound of a half whose model gives ``REFERENCE`` after every text."""
    made = Judge(assemble().target, range(24))
    made._bound = 0.5
    monkeypatch.setattr(made, "logits", lambda prefix: REFERENCE)
    return made


def _compared(
    level_judge: Judge, plain: Tensor | None, other: Tensor | None, outputs: tuple[tuple[int, ...], tuple[int, ...]]
) -> list[Difference]:
    """The differences of two outputs after which no arm may be asked again."""
    arms = _Arm(PLAINS, plain), _Arm(OTHERS, other)
    found = level_judge.compare([ASKED], ASKED, *arms, outputs)
    assert (arms[0].asked, arms[1].asked) == (0, 0)
    return found


def test_equal_outputs_have_no_difference(level_judge: Judge) -> None:
    assert _compared(level_judge, None, None, ((REST,), (REST,))) == _compared(level_judge, None, None, ((), ())) == []


def test_an_output_that_ends_before_the_other_has_no_token_and_no_logits_there(level_judge: Judge) -> None:
    short, long = (REST, REST), (REST, REST, PLAINS, REST)
    none = None, None, (0.0, 0.0), 0.5, False, ENDED
    assert _compared(level_judge, PLAIN, OTHER, (short, long)) == [Difference(4, 2, (-1, PLAINS), *none)]
    assert _compared(level_judge, PLAIN, OTHER, (long, short)) == [Difference(4, 2, (PLAINS, -1), *none)]
    assert _compared(level_judge, PLAIN, OTHER, ((), (OTHERS,))) == [Difference(4, 0, (-1, OTHERS), *none)]


def test_an_arm_that_does_not_repeat_its_output_is_named_and_has_no_logits(level_judge: Judge) -> None:
    outputs = (REST, PLAINS, REST), (REST, OTHERS, REST)
    pairs = {"plain": (4.25, 4.0), "other": (4.0, 4.25), "reference": (4.0, 4.0)}
    both = Difference(4, 1, (PLAINS, OTHERS), bound=0.5, tie=False, reason="", **pairs)
    silent = "did not repeat its own output"
    assert _compared(level_judge, None, OTHER, outputs) == [replace(both, plain=None, reason=f"plain {silent}")]
    assert _compared(level_judge, PLAIN, None, outputs) == [replace(both, other=None, reason=f"the other {silent}")]
    neither = replace(both, plain=None, other=None, reason=f"plain {silent}")
    assert _compared(level_judge, None, None, outputs) == [neither], "the first reason is told"


def test_logits_at_the_bounds_end_are_within_it(level_judge: Judge) -> None:
    outputs = (PLAINS,), (OTHERS,)
    for far, reason in (
        (0.5, CLOSE),
        (-0.5, CLOSE),
        (0.53125, "plain's logits lie 5.3e-01 from the unmodified model's"),
        (-0.53125, "plain's logits lie 5.3e-01 from the unmodified model's"),
    ):
        plain = _logits(plains=4.25, others=4.0, last=far)
        expected = Difference(
            4, 0, (PLAINS, OTHERS), (4.25, 4.0), (4.0, 4.25), (4.0, 4.0), 0.5, reason == CLOSE, reason
        )
        assert _compared(level_judge, plain, OTHER, outputs) == [expected]


def test_a_tie_at_the_end_of_plains_output_is_the_last_difference(level_judge: Judge) -> None:
    """Plain's output has ended by itself, before the most tokens that were asked for; the other's may go on."""
    for rest in ((), (REST, REST, REST)):
        found = _compared(level_judge, PLAIN, OTHER, ((REST, REST, PLAINS), (REST, REST, OTHERS, *rest)))
        assert [(one.index, one.tie) for one in found] == [(2, True)]


@pytest.mark.parametrize("places", [(4, 5), (0, 1, 2), (0, 4), (3,), (5,), (0, 1, 2, 3, 4, 5)])
def test_after_every_tie_both_arms_go_on_from_plains_tokens_to_the_last_one(
    places: tuple[int, ...], level_judge: Judge
) -> None:
    plain, other = _Arm(PLAINS, PLAIN, places), _Arm(OTHERS, OTHER, places)
    outputs = plain.tokens([ASKED])[0], other.tokens([ASKED])[0]
    tie = Difference(4, 0, (PLAINS, OTHERS), (4.25, 4.0), (4.0, 4.25), (4.0, 4.0), 0.5, True, CLOSE)
    found = level_judge.compare([ASKED], ASKED, plain, other, outputs)
    assert found == [replace(tie, index=place) for place in places]
    exact = replace(tie, index=places[0], tie=False, reason=ties.EXACT)
    assert level_judge.compare([ASKED], ASKED, plain, other, outputs, True) == [exact]


@pytest.mark.parametrize(
    ("dtype", "own", "bound"),
    [
        (torch.float32, 2.0**-13, 2.0**-11),
        (torch.float32, 2.0**-10, 1e-3),
        (torch.float32, 1.0, 1e-3),
        (torch.bfloat16, 1.0, 4.0),
    ],
)
def test_the_bound_is_four_times_the_models_own_difference_and_in_float32_no_more_than_a_thousandth(
    dtype: torch.dtype, own: float, bound: float, assemble: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Judge(assemble(dtype=dtype).target, range(24))
    monkeypatch.setattr(made, "_own_difference", lambda: own)
    assert made.bound == bound
    monkeypatch.setattr(made, "_own_difference", lambda: 0.0)
    assert made.bound == bound, "measured once"


def test_the_constants_of_verdicts_are_the_documented_ones() -> None:
    assert (ties.MARGIN, ties.MOST_FLOAT32, ties.CONFIDENCE, ties.TOO_MANY) == (4, 1e-3, 0.99, 1e-6)
    found = fidelity.BINS, fidelity.FALSE_ALARM, fidelity.EXACT, fidelity.LEAST, fidelity.SURE
    assert found == (10, 1e-6, 500, 1e-12, 0.99)


class _Fixed:
    """A judge that knows the logits of one output."""

    def __init__(self, logits: Tensor) -> None:
        self.known = logits

    def after(self, prompt: tuple[int, ...], output: tuple[int, ...]) -> Tensor:
        return self.known

    def surprise(self, prompt: tuple[int, ...], output: tuple[int, ...]) -> float:
        return 0.0


def test_an_output_is_examined_under_the_penalties_that_were_asked_for() -> None:
    """Each token that came before is less likely by the penalty, once; the order of tokens is by the rest."""
    got = (0, 1, 0, 3, 2, 2, 1)
    logits = torch.tensor([[1.0, 0.75, 0.5, 0.25, 0.0]] * len(got))
    lowered = logits.clone()
    for place in range(len(got)):
        for token in set(got[:place]):
            lowered[place, token] -= 1.5
    free = Request(1, (4,), SamplingParams(temperature=1.0, seed=3, max_new_tokens=9))
    penal = Request(1, (4,), SamplingParams(temperature=1.0, seed=3, max_new_tokens=9, presence_penalty=1.5))
    found = fidelity.examine(_Fixed(logits), penal, got, got)  # type: ignore[arg-type]
    expected = fidelity.examine(_Fixed(lowered), free, got, got)  # type: ignore[arg-type]
    assert found.bins == expected.bins
    assert found.bins != fidelity.examine(_Fixed(logits), free, got, got).bins  # type: ignore[arg-type]
