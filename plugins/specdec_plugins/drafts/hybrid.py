"""hybrid: the first source that proposes something: suffix, else n-gram, else a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from specdec import Context, Draft, Request, SpecdecError, Verdict, Window, hookimpl
from specdec.devices import uploaded
from specdec.interfaces import DraftFactory, Env
from specdec.lists import split_list
from specdec.taps import Taps


class Hybrid(Draft):
    """Each row takes its proposals from the first source that has any for it.

    All sources except the last look up on the host, which shows at once whether they found something; the last
    source may be any draft that proposes chains. It is called only if some row has no proposals.

    Source: the order of SuffixDecoding's hybrid, Oliaro et al. 2411.04975, section 4.

    Example: ``hybrid(sources="suffix, ngram, eagle(head=trained)", model_k=4)``
    """

    def __init__(
        self,
        env: Env,
        sources: Annotated[str, "drafts in order of preference, separated by commas"] = "suffix, ngram",
        model_k: Annotated[int, "most proposals of a source that is not a lookup"] = 4,
    ) -> None:
        drafts = [env.draft(text) for text in split_list(sources)]
        if not drafts:
            raise SpecdecError("hybrid has no sources; name some drafts, for example 'suffix, ngram'")
        self._lookups = [draft for draft in drafts if draft.looks_up]
        self._rest = [draft for draft in drafts if not draft.looks_up]
        if self._rest not in ([], drafts[-1:]) or any(draft.branches for draft in drafts):
            raise SpecdecError(
                f"hybrid cannot combine {sources!r}: expected lookups (suffix, ngram) and at most one other draft, "
                "as the last, all of them chains"
            )
        if model_k < 1:
            raise SpecdecError(f"model_k is {model_k}; expected 1 or more")
        self._sources, self._model_k = drafts, model_k
        self._drafted = False  # whether the last source alone made this hybrid's last window
        self._few = torch.zeros(env.max_rows, dtype=torch.int64, device=env.target.device)
        self.looks_up = not self._rest
        self._taps, self._asked = Taps.of(drafts), [Taps.of([draft]) for draft in drafts]
        self.needs_hidden, self.hidden_layers = self._taps.final, self._taps.layers
        self.needs_logits = any(draft.needs_logits for draft in drafts)
        self.small_ops = all(draft.small_ops for draft in drafts)
        self.learns = any(draft.learns for draft in drafts)
        # Lookups have no weights, so this is the last source's number, and so is the count of forwards.
        self.weight_bytes = sum(draft.weight_bytes for draft in drafts)

    def admit(self, row: int, request: Request, prompt: tuple[int, ...]) -> None:
        """All sources admit the request."""
        for source in self._sources:
            source.admit(row, request, prompt)

    def release(self, row: int, tokens: tuple[int, ...]) -> None:
        """All sources release the request."""
        for source in self._sources:
            source.release(row, tokens)

    def keep(self, row: int, tokens: tuple[int, ...]) -> object:
        """What each source keeps; None if one that needs hidden states keeps nothing."""
        kept = [source.keep(row, tokens) for source in self._sources]
        lost = any(k is None and asked for k, asked in zip(kept, self._asked, strict=True))
        return None if lost else kept

    def resume(self, row: int, request: Request, prompt: tuple[int, ...], kept: object, first: int) -> None:
        """Each source resumes with what it kept, or admits the request."""
        assert isinstance(kept, list)
        for source, own in zip(self._sources, kept, strict=True):
            if own is None:
                source.admit(row, request, prompt)
            else:
                source.resume(row, request, prompt, own, first)

    def move(self, source: int, row: int, request: Request, tokens: tuple[int, ...]) -> None:
        """All sources move the request."""
        for draft in self._sources:
            draft.move(source, row, request, tokens)

    def prefilled(self, row: int, tokens: Tensor, start: int, hidden: Tensor) -> None:
        """Pass to each source the hidden states that it needs."""
        for source, asked in zip(self._sources, self._asked, strict=True):
            if (states := self._taps.part(hidden, asked)) is not None:
                source.prefilled(row, tokens, start, states)

    def observe(self, window: Window, verdict: Verdict, hidden: Tensor | None, own: bool) -> None:
        """All sources observe the verdict; the window is the last source's own if no lookup found any of it.

        Each gets the states and logits that it needs.
        """
        for source, asked in zip(self._sources, self._asked, strict=True):
            theirs = own and self._drafted and source in self._rest
            states = None if hidden is None else self._taps.part(hidden, asked)
            bare = self.needs_logits and not source.needs_logits
            source.observe(window, replace(verdict, logits=None) if bare else verdict, states, theirs)

    def forget(self) -> None:
        """All sources forget."""
        for source in self._sources:
            source.forget()

    def info(self) -> Mapping[str, int]:
        """The counters of all sources; those of one name are added."""
        total = Counter[str]()
        for source in self._sources:
            total.update(source.info())
        return total

    def propose(self, context: Context) -> Window:
        """The lookups' proposals for the rows that have some, the last source's proposals for the others."""
        found = [next(iter(self.look_up(context, row)), ()) for row in range(context.rows)]
        looked, self._drafted = Window.ragged(context, found), False
        if not self._rest or all(found[row] or context.max_proposals_host[row] < 1 for row in range(context.rows)):
            return looked
        # Where it stays: a part that the last source has recorded reads it there.
        few = torch.clamp(context.max_proposals, max=self._model_k, out=self._few[: context.rows])
        drafted = self._rest[0].propose(
            replace(context, max_proposals=few, max_proposals_host=context.max_proposals_host.clip(max=self._model_k))
        )
        self._drafted = not any(found)
        if self._drafted:
            return drafted
        [theirs] = uploaded(context.tokens.device, np.array([not tokens for tokens in found], dtype=np.int64))
        return _joined(looked, drafted, theirs > 0)

    def look_up(self, context: Context, row: int) -> Sequence[Sequence[int]]:
        """What the first lookup that finds something finds; a hybrid without another source is a lookup itself."""
        return next((paths[:1] for source in self._lookups if (paths := source.look_up(context, row))), ())


def _joined(looked: Window, drafted: Window, theirs: Tensor) -> Window:
    """Rows of ``drafted`` where ``theirs`` bool [B] is true, else rows of ``looked``; both are chains."""
    size = max(looked.tokens.shape[1], drafted.tokens.shape[1])

    def wide(tokens: Tensor) -> Tensor:
        return torch.nn.functional.pad(tokens, (0, size - tokens.shape[1]))

    tokens = torch.where(theirs[:, None], wide(drafted.tokens), wide(looked.tokens))
    proposed = torch.where(theirs, drafted.width, looked.width) - 1
    q = None
    if drafted.q is not None:
        q = torch.nn.functional.pad(drafted.q, (0, 0, 0, size - 1 - drafted.q.shape[1]))
        sure = torch.zeros_like(q).scatter_(2, tokens[:, 1:, None], 1.0)
        q = torch.where(theirs[:, None, None], q, sure)
    return Window.chain(tokens[:, 0], tokens[:, 1:], proposed, q)


@hookimpl
def specdec_register_drafts(register: Callable[[str, DraftFactory], None]) -> None:
    """Register ``hybrid``."""
    register("hybrid", Hybrid)
