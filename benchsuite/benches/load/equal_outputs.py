"""Whether an arm's output under load is plain's: a token may differ only where rounding may decide."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from benchsuite.judge.ties import Judge
from specdec.request import Request


@dataclass(frozen=True)
class UnequalOutput:
    """The first token at which an output is not plain's.

    ``prompt``: the place of its prompt; ``index`` counts output tokens; ``tokens``: plain's and the arm's, None where
    an output has ended; ``reason``: why this is no tie, empty for one.
    """

    prompt: int
    index: int
    tokens: tuple[int | None, int | None]
    reason: str

    @property
    def tie(self) -> bool:
        """Whether two forwards of other widths may choose either token."""
        return not self.reason

    def __str__(self) -> str:
        verdict = "tie" if self.tie else "BUG"
        said = self.reason or "each follows from logits within the bound of the unmodified model's"
        return f"{verdict}: prompt {self.prompt}, output token {self.index}: plain {self.tokens[0]}, other " + (
            f"{self.tokens[1]}: {said}"
        )


def unequal_output(
    judge: Judge, place: int, request: Request, plain: Sequence[int], other: Sequence[int]
) -> UnequalOutput | None:
    """Return the first difference of an output from plain's, of the same ``request``; None if they are equal.

    A batch of other rows cannot be run again as it was, so that no arm's logits are at hand. Each may lie as far from
    the unmodified model's as ``judge.bound``. A token follows from such logits if the request draws it where its logit
    is raised by twice that (what raises all logits alike changes no draw), and every token that it would draw instead
    is one that top-k, top-p or min-p may leave out. Both tokens follow, or it is no tie. What comes after a first
    difference is not compared.
    """
    if tuple(plain) == tuple(other):
        return None
    index = next((n for n, (one, two) in enumerate(zip(plain, other, strict=False)) if one != two), None)
    if index is None:
        index = min(len(plain), len(other))
        ends = [tokens[index] if index < len(tokens) else None for tokens in (plain, other)]
        return UnequalOutput(place, index, (ends[0], ends[1]), "one output has ended")
    logits, rest = judge.logits((*request.prompt, *plain[:index])), request.after(tuple(plain[:index]))
    wrong = [token for token in (plain[index], other[index]) if not _follows(judge, logits, rest, token)]
    far = f"{' and '.join(map(str, wrong))} from no logits within {judge.bound:.1e} of the unmodified model's"
    return UnequalOutput(place, index, (plain[index], other[index]), far if wrong else "")


def _follows(judge: Judge, logits: Tensor, request: Request, token: int) -> bool:
    raised = logits.clone()
    raised[token] += 2 * judge.bound
    while (drawn := judge.choice(raised, request)) != token:
        lowered = logits.clone()
        lowered[drawn] -= 2 * judge.bound
        if request.params.temperature == 0 or judge.processed(lowered, request)[drawn] > -math.inf:
            return False
        raised[drawn] = -math.inf
    return True
