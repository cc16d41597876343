"""ngram: prompt lookup; proposes the tokens that followed the last occurrence of the same n tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from specdec import Context, SpecdecError, Window, hookimpl
from specdec.interfaces import DraftFactory, Env
from specdec_plugins.lookup import History, Lookup

MATCHED = 65
"""One more than the tokens before a continuation that are compared."""


class Ngram(Lookup):
    """Finds the latest earlier occurrence of the last n tokens, n from n_max to n_min; proposes the tokens after it.

    It searches prompt and output, on the host. A row without a match proposes nothing. With ``branches`` above 1, the
    most recent occurrences with different continuations are proposed as a tree.

    Source: prompt lookup decoding, A. Saxena 2023.

    Example: the history 1 2 3 9 1 2 with K = 3 matches 1 2 at the start and proposes 3 9 1.
    """

    extends = True

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
        self._match: tuple[int, float] = 0, 0.0  # where the continuation began; its first token's share

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
                followed = history[hits + n]
                self._match = int(hits[-1]) + n, float((followed == followed[-1]).mean())
                found: dict[int, list[int]] = {}
                for after in reversed(hits + n):
                    found.setdefault(int(history[after]), history[after : after + limit].tolist())
                    if len(found) == self.most:
                        break
                return list(found.values())
        return []

    def match(self, row: int, history: History) -> tuple[int, Sequence[float]]:
        """All tokens that are equal before both places, and the share of the first token's after the n that were
        looked for; behind it nothing else is known."""
        place, share = self._match
        before, end = history[place - 1 :: -1] if place else history[:0], history[:-MATCHED:-1]
        length = min(len(before), len(end))
        unequal = np.flatnonzero(before[:length] != end[:length])
        return int(unequal[0]) if unequal.size else length, [share] + [1.0] * (len(history) - place)

    def extend(self, context: Context, window: Window, most: int) -> tuple[Tensor, Tensor]:
        """The first of ``continuations`` for each row's text with its proposals, computed on the device."""
        slots = torch.arange(window.tokens.shape[1] - 1, device=window.tokens.device)
        text = F.pad(context.tokens, (0, len(slots)))
        text = text.scatter(1, context.length[:, None] + slots, window.tokens[:, 1:])
        last = context.length + window.width - 2  # the place of each row's last token
        places = torch.arange(text.shape[1], device=text.device)
        length = torch.zeros_like(text)  # of the match that ends at each place, at most n_max
        same = places < last[:, None]
        for offset in range(self._sizes[0]):
            before = F.pad(text, (offset, 0), value=-1)[:, : text.shape[1]]
            same = same & (before == text.gather(1, (last - offset).clamp(min=0)[:, None]))
            length = length + same
        best = torch.where(length >= self._sizes[-1], length * text.shape[1] + places, -1).max(dim=1)
        after = best.indices[:, None] + 1 + torch.arange(most, device=text.device)
        count = torch.where(best.values >= 0, last - best.indices, 0).clamp(max=most)
        return text.gather(1, after.clamp(max=text.shape[1] - 1)), count


@hookimpl
def specdec_register_drafts(register: Callable[[str, DraftFactory], None]) -> None:
    """Register ``ngram``."""
    register("ngram", Ngram)
