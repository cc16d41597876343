"""How far outputs agree that are compared and not judged: those of engines with arithmetic of their own."""

from __future__ import annotations

from dataclasses import dataclass

from benchsuite.judge.sources import Tokens


@dataclass(frozen=True)
class Agreement:
    """Sums over pairs of outputs; two objects can be added.

    ``equal`` of ``runs`` outputs are the same; ``prefix`` of ``tokens`` expected tokens come before the first
    difference, after which two greedy outputs continue different texts.

    Example: ``Agreement.of((1, 2, 3, 4), (1, 2, 9, 4))`` is ``Agreement(runs=1, equal=0, tokens=4, prefix=2)``
    """

    runs: int = 0
    equal: int = 0
    tokens: int = 0
    prefix: int = 0

    @staticmethod
    def of(expected: Tokens, got: Tokens) -> Agreement:
        """The agreement of one output with the one that is expected."""
        prefix = next((i for i, (a, b) in enumerate(zip(expected, got, strict=False)) if a != b), None)
        same = min(len(expected), len(got)) if prefix is None else prefix
        return Agreement(1, int(expected == got), len(expected), same)

    def __add__(self, other: Agreement) -> Agreement:
        return Agreement(
            self.runs + other.runs, self.equal + other.equal, self.tokens + other.tokens, self.prefix + other.prefix
        )

    @property
    def summary(self) -> str:
        """The outputs that are equal and, if not all are, the share of tokens before a difference: "3/6 equal, 71%"."""
        text = f"{self.equal}/{self.runs} equal"
        return text if self.equal == self.runs else f"{text}, {self.prefix / max(self.tokens, 1):.0%} before"
