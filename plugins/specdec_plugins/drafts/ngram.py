"""ngram: prompt lookup; proposes the tokens that followed the last occurrence of the same n tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import numpy as np

from specdec import SpecdecError, hookimpl
from specdec.interfaces import DraftFactory, Env
from specdec_plugins.lookup import History, Lookup


class Ngram(Lookup):
    """Finds the latest earlier occurrence of the last n tokens, n from n_max to n_min; proposes the tokens after it.

    It searches prompt and output, on the host. A row without a match proposes nothing. With ``branches`` above 1, the
    most recent occurrences with different continuations are proposed as a tree.

    Source: prompt lookup decoding, A. Saxena 2023.

    Example: the history 1 2 3 9 1 2 with K = 3 matches 1 2 at the start and proposes 3 9 1.
    """

    def __init__(
        self,
        env: Env,
        n_max: Annotated[int, "longest run of tokens that is looked for"] = 4,
        n_min: Annotated[int, "shortest run that is used"] = 2,
        branches: Annotated[int, "continuations proposed; more than 1 makes a tree"] = 1,
    ) -> None:
        if not 1 <= n_min <= n_max:
            raise SpecdecError(f"n_min is {n_min} and n_max {n_max}; expected 1 <= n_min <= n_max")
        if branches < 1:
            raise SpecdecError(f"branches is {branches}; expected 1 or more")
        super().__init__(branches)
        self._sizes = range(n_max, n_min - 1, -1)

    def continuations(self, row: int, history: History, limit: int) -> list[list[int]]:
        """The tokens after the longest match, most recent first; each continuation begins with a different token."""
        for n in self._sizes:
            if len(history) <= n:
                continue
            # Starts of all windows of n tokens except the last, which is the suffix itself.
            same = history[: len(history) - n] == history[-n]
            for offset in range(1, n):
                same &= history[offset : len(history) - n + offset] == history[offset - n]
            hits = np.flatnonzero(same)
            if hits.size:
                found: dict[int, list[int]] = {}
                for after in reversed(hits + n):
                    found.setdefault(int(history[after]), history[after : after + limit].tolist())
                    if len(found) == self.most:
                        break
                return list(found.values())
        return []


@hookimpl
def specdec_register_drafts(register: Callable[[str, DraftFactory], None]) -> None:
    """Register ``ngram``."""
    register("ngram", Ngram)
