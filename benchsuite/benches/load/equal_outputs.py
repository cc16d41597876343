"""Whether an arm's greedy output under load is plain's: a token may differ only where rounding may decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchsuite.judge.ties import Judge


@dataclass(frozen=True)
class UnequalOutput:
    """The first token at which an output is not plain's.

    ``prompt``: the place of its prompt; ``index`` counts output tokens; ``tokens``: plain's and the arm's, None where
    an output has ended; ``gap``: how far the lower of their logits lies below the largest, by the unmodified model;
    ``tie``: it lies so near that two forwards of other widths may choose either.
    """

    prompt: int
    index: int
    tokens: tuple[int | None, int | None]
    gap: float | None
    tie: bool

    def __str__(self) -> str:
        verdict = "tie" if self.tie else "BUG"
        far = "one output has ended" if self.gap is None else f"{self.gap:.1e} nats below the likeliest"
        return f"{verdict}: prompt {self.prompt}, output token {self.index}: plain {self.tokens[0]}, other " + (
            f"{self.tokens[1]}, {far}"
        )


def compare_greedy(
    judge: Judge, place: int, prompt: Sequence[int], plain: Sequence[int], other: Sequence[int]
) -> UnequalOutput | None:
    """Return the first difference of a greedy output from plain's; None if they are equal.

    A batch of other rows cannot be run again as it was, so that no arm's logits are at hand. Each may lie as far from
    the unmodified model's as ``judge.bound``: both tokens are within twice that of the largest, or it is no tie. What
    follows a first difference is not compared.
    """
    if tuple(plain) == tuple(other):
        return None
    index = next((n for n, (one, two) in enumerate(zip(plain, other, strict=False)) if one != two), None)
    if index is None:
        index = min(len(plain), len(other))
        ends = [tokens[index] if index < len(tokens) else None for tokens in (plain, other)]
        return UnequalOutput(place, index, (ends[0], ends[1]), None, tie=False)
    logits = judge.logits((*prompt, *plain[:index]))
    gap = max(float(logits.max() - logits[tokens[index]]) for tokens in (plain, other))
    return UnequalOutput(place, index, (plain[index], other[index]), gap, gap <= 2 * judge.bound)
