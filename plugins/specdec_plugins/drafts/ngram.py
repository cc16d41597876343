"""ngram: prompt lookup. What followed the last time these tokens stood here?"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from specdec import Context, Draft, SpecdecError, Window, hookimpl
from specdec.interfaces import DraftFactory, Env


class Ngram(Draft):
    """Find the most recent earlier occurrence of the last n tokens, n from ``n_max`` down to ``n_min``,
    in prompt and output; propose what followed it (prompt lookup decoding, A. Saxena 2023).

    Runs on the host over ``context.history``. A row without a match proposes nothing.

    Example: the history 1 2 3 9 1 2 with K = 3 matches 1 2 at the start and proposes 3 9 1.
    """

    def __init__(self, env: Env, n_max: int = 4, n_min: int = 2) -> None:
        if not 1 <= n_min <= n_max:
            raise SpecdecError(f"n_min is {n_min} and n_max {n_max}; expected 1 <= n_min <= n_max")
        self._sizes = range(n_max, n_min - 1, -1)

    def propose(self, context: Context) -> Window:
        """A chain of what followed the longest match; as wide as the longest proposal of any row."""
        limits, lengths = context.max_proposals_host, context.length_host
        return Window.ragged(
            context,
            [self._follow(context.history[row, : lengths[row]], int(limits[row])) for row in range(context.rows)],
        )

    def _follow(self, history: npt.NDArray[np.int64], limit: int) -> npt.NDArray[np.int64]:
        for n in self._sizes:
            if limit < 1 or len(history) <= n:
                continue
            # Starts of every window of n tokens but the last, which is the suffix itself.
            same = history[: len(history) - n] == history[-n]
            for offset in range(1, n):
                same &= history[offset : len(history) - n + offset] == history[offset - n]
            hits = np.flatnonzero(same)
            if hits.size:
                after = hits[-1] + n
                return history[after : after + limit]
        return history[:0]


@hookimpl
def specdec_register_drafts(register: Callable[[str, DraftFactory], None]) -> None:
    """Register ``ngram``."""
    register("ngram", Ngram)
