"""hybrid: several sources as one draft: the first that proposes something, chains behind chains, or one tree of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specdec import Context, Draft, Request, SpecdecError, Verdict, Window, hookimpl
from specdec.devices import uploaded
from specdec.interfaces import DraftFactory, Env
from specdec.lengths import Price
from specdec.lists import split_list
from specdec.taps import Taps
from specdec_plugins import joining
from specdec_plugins.choosing import of_either
from specdec_plugins.lookup import Found, beginnings, chances_of, merged
from specdec_plugins.track_record import TrackRecord

Counts = npt.NDArray[np.int64]
"""Proposals of each row, [B]."""

WORTH = 0.05
"""Tokens that one more slot of a row must bring, in forwards of one slot, to be filled: the chance that it is kept."""


class Hybrid(Draft):
    """Each row takes its proposals from the first source that has any for it.

    All sources except the last look up on the host, which shows at once whether they found something; the last
    source may be any other draft. It is called only if some row has no proposals. At a price (``Context.price``) a row
    takes the source that brings it most: what lookups tell of theirs, and what came of the last source's before
    (``TrackRecord``), whose forwards cost as well; so it may take the last one's in place of what was found, or none.

    With ``extend``, the first source that can (``Draft.extends``, as ngram) goes on behind each row's last proposal,
    whoever made it. With ``merge`` every source is asked for every row, and their chains and trees are verified as one
    tree, in which a common beginning occurs once. Both begin with the proposals that the row has without them, and fill
    the row up to ``slots``; nothing of those is left out.

    Source: the order of SuffixDecoding's hybrid, Oliaro et al. 2411.04975, section 4.

    Example: ``hybrid(sources="suffix, ngram, eagle(head=trained)", model_k=4)``
    """

    def __init__(
        self,
        env: Env,
        sources: Annotated[str, "drafts in order of preference, separated by commas"] = "suffix, ngram",
        model_k: Annotated[int, "most proposals of a source that is not a lookup, unless it heeds a price itself"] = 4,
        extend: Annotated[bool, "a source goes on behind the last proposal of another"] = False,
        merge: Annotated[bool, "what all sources propose is one tree"] = False,
        slots: Annotated[int, "extend and merge: proposals to fill; 0: what the forward's measured cost allows"] = 0,
    ) -> None:
        drafts = [env.draft(text) for text in split_list(sources)]
        if not drafts:
            raise SpecdecError("hybrid has no sources; name some drafts, for example 'suffix, ngram'")
        self._lookups = [draft for draft in drafts if draft.looks_up]
        self._rest = [draft for draft in drafts if not draft.looks_up]
        chains = () if merge else drafts if extend else self._lookups
        if self._rest not in ([], drafts[-1:]) or any(draft.branches for draft in chains):
            raise SpecdecError(
                f"hybrid cannot combine {sources!r}: expected lookups (suffix, ngram) and at most one other draft, as "
                "the last; unless merge=True lookups must be chains, and with extend=True all drafts"
            )
        if model_k < 1:
            raise SpecdecError(f"model_k is {model_k}; expected 1 or more")
        if slots < 0:
            raise SpecdecError(f"slots is {slots}; expected 1 or more, or 0 for what the forward's cost allows")
        if extend and merge:
            raise SpecdecError("hybrid takes extend or merge, not both: one makes longer chains, the other trees")
        self._extender = next((draft for draft in drafts if draft.extends), None) if extend else None
        if extend and self._extender is None:
            raise SpecdecError(
                f"hybrid(extend=True) has the sources {sources!r}, none of which goes on behind another's proposals; "
                "add one that does, as ngram"
            )
        self._sources, self._model_k, self._merge = drafts, model_k, merge
        most = slots or (cheap_proposals(env) if extend or merge else 1)
        self._slots = max(most, model_k if self._rest else 1)
        self._source: dict[int, Draft] = {}  # by row, the lookup that found something last
        self._drafted = False  # whether the last source alone made this hybrid's last window
        self._few = torch.zeros(env.max_rows, dtype=torch.int64, device=env.target.device)
        self._record = TrackRecord()  # of the last source
        self._takes = [*range(model_k + 1)]  # its forwards in a step, by the depth of its proposals: one each, or fewer
        self._begun: tuple[int, int] | None = None  # this depth in the step that runs, and its forwards before
        self.looks_up = not self._rest and not extend
        self.branches = merge or any(draft.branches for draft in self._rest)
        self._spends = any(draft.heeds_price for draft in self._rest)  # the last source heeds a price itself
        # Of a tree nobody else knows how many proposals make a depth.
        self.heeds_price = all(draft.heeds_price for draft in self._lookups) and not (merge or extend)
        self.heeds_price &= self._spends or not self.branches
        self._taps, self._asked = Taps.of(drafts), [Taps.of([draft]) for draft in drafts]
        self.needs_hidden, self.hidden_layers = self._taps.final, self._taps.layers
        self.needs_logits = any(draft.needs_logits for draft in drafts)
        self.small_ops = all(draft.small_ops for draft in drafts)
        self.learns = any(draft.learns for draft in drafts)
        # Lookups have no weights, so this is the last source's number, and so is the count of forwards.
        self.weight_bytes = sum(draft.weight_bytes for draft in drafts)

    def admit(self, row: int, request: Request, prompt: tuple[int, ...]) -> None:
        """All sources admit the request."""
        self._record.drop(row)
        for source in self._sources:
            source.admit(row, request, prompt)

    def release(self, row: int, tokens: tuple[int, ...]) -> None:
        """All sources release the request."""
        self._record.drop(row)
        self._source.pop(row, None)
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
        self._record.drop(row)
        for source, own in zip(self._sources, kept, strict=True):
            if own is None:
                source.admit(row, request, prompt)
            else:
                source.resume(row, request, prompt, own, first)

    def move(self, source: int, row: int, request: Request, tokens: tuple[int, ...]) -> None:
        """All sources move the request."""
        self._record.move(source, row)
        self._source.pop(source, None)
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
        if self._begun is not None:
            depth, before = self._begun
            self._begun, taken = None, self._forwards() - before
            self._takes[depth] = min(taken, self._takes[depth])

    def forget(self) -> None:
        """All sources forget, and so does what is known of the last one."""
        self._record = TrackRecord()
        for source in self._sources:
            source.forget()

    def info(self) -> Mapping[str, int]:
        """The counters of all sources; those of one name are added."""
        total = Counter[str]()
        for source in self._sources:
            total.update(source.info())
        return total

    def propose(self, context: Context) -> Window:
        """What the lookups find and the last source proposes: a row of either, or both in one tree."""
        self._drafted = False
        found: Found = [self.look_up(context, row) for row in range(context.rows)]
        few = context.max_proposals_host.clip(max=self._model_k if self._rest else 0)
        if self.heeds_price and self._rest and not self._spends:
            self._record.seen(context.length_host.tolist())
        if self.heeds_price and context.price is not None:
            found, few = self._worth_it(context, context.price, found, few)
        elif not self._merge:
            few = np.where([bool(paths) for paths in found], 0, few)
        drafted = self._last(context, few, found) if few.any() else None
        window = self._merged(context, found, drafted) if self._merge else self._chained(context, found, drafted)
        return self._extended(context, window, found, drafted is not None) if self._extender else window

    def look_up(self, context: Context, row: int) -> Sequence[Sequence[int]]:
        """What the first lookup that finds something finds; with ``merge`` what all of them find.

        A hybrid without another source is a lookup itself.
        """
        if self._merge:
            return [path for source in self._lookups for path in source.look_up(context, row)]
        for source in self._lookups:
            if paths := source.look_up(context, row):
                if self.heeds_price:
                    self._source[row] = source
                return paths[:1]
        return ()

    def chances(self, row: int) -> Sequence[float]:
        """Those of the source that found it."""
        return self._source[row].chances(row)

    def _worth_it(self, context: Context, price: Price, found: Found, few: Counts) -> tuple[Found, Counts]:
        """What rows take of what was found, and how many proposals of the last source, of at most ``few`` [B] each."""
        known = self._rest[0].chances if self._spends else lambda row: self._record.chances(row, self._model_k)
        drafted = [known(row)[:most] if most else [] for row, most in enumerate(few.tolist())]
        taken, asked = of_either(price, chances_of(self, found), drafted, self._takes)
        for row, count in enumerate(asked):
            if count and not self._spends:
                self._record.asked(row, int(context.length_host[row]), count)
        rooms = context.max_proposals_host if self._spends else np.array(asked)
        return beginnings(found, taken), np.where(np.array(asked) > 0, rooms, 0)

    def _forwards(self) -> int:
        return self._rest[0].info().get("draft_forwards", 0)

    def _last(self, context: Context, few: Counts, found: Found) -> Window:
        """The last source's window, with at most ``few`` [B] proposals of each row, behind what others ``found``."""
        self._begun = None if self._spends else (int(few.max()), self._forwards())
        price = None
        if context.price is not None and self._spends:
            price = context.price.behind(sum(len(path) for paths in found for path in paths))
        # Where it stays: a part that the last source has recorded reads it there.
        [most] = uploaded(context.tokens.device, few)
        stays = self._few[: context.rows].copy_(most)
        return self._rest[0].propose(replace(context, max_proposals=stays, max_proposals_host=few, price=price))

    def _chained(self, context: Context, found: Found, drafted: Window | None) -> Window:
        """The lookups' first chains, and the last source's for the rows that have none."""
        if drafted is not None and not any(found):
            self._drafted = True
            return drafted
        looked = Window.ragged(context, [next(iter(paths), ()) for paths in found])
        if drafted is None:
            return looked
        [theirs] = uploaded(context.tokens.device, np.array([not paths for paths in found], dtype=np.int64))
        return joining.rows_of_either(looked, drafted, theirs > 0)

    def _merged(self, context: Context, found: Found, drafted: Window | None) -> Window:
        """One tree of all that was found and drafted: each row's first chain, filled up to ``slots``."""
        if drafted is not None and not any(found):
            self._drafted = True
            return drafted
        first = np.array([len(next(iter(paths), ())) for paths in found])
        limits = np.minimum(context.max_proposals_host, np.maximum(first, self._slots))
        trees = [merged(*row) for row in zip(found, limits.tolist(), first.tolist(), strict=True)]
        looked = Window.ragged(context, [tokens for tokens, _ in trees], [parents for _, parents in trees])
        if drafted is None:
            return looked
        whole, room = uploaded(context.tokens.device, first, limits)
        most = min(int(limits.max()), looked.tokens.shape[1] + drafted.tokens.shape[1] - 2)
        return joining.grown_together(looked, drafted, whole, room, most)

    def _extended(self, context: Context, window: Window, found: Found, drafted: bool) -> Window:
        """The window, in which the extending source goes on behind every row's last proposal."""
        assert self._extender is not None
        room = context.max_proposals_host.clip(max=self._slots)
        left = [
            int(most) for most, paths in zip(room, found, strict=True) if (len(paths[0]) < most if paths else drafted)
        ]
        if not any(left):
            return window
        self._drafted = False
        tokens, count = self._extender.extend(context, window, max(left))
        return joining.continued(window, tokens, count, context.max_proposals.clamp(max=self._slots))


def cheap_proposals(env: Env) -> int:
    """The number of proposals of a row that brings most, at ``WORTH`` tokens each, over what they cost the target.

    The cost is that of all rows' windows at half of the longest text, measured where it is not known yet, in forwards
    of one slot a row. Example: 7, if eight slots cost 1.03 of one and nine 1.5.
    """
    most, half = env.max_window, env.max_length // 2
    env.calibration.measure({env.max_rows}, [half], sorted({1, 2, most} | {w for w in (4, 8, 12, 16) if w < most}))
    seconds = [env.calibration.forward(width, env.max_rows, half) for width in range(1, most + 1)]
    return max(range(most), key=lambda k: (WORTH * k - seconds[k] / seconds[0], -k))


@hookimpl
def specdec_register_drafts(register: Callable[[str, DraftFactory], None]) -> None:
    """Register ``hybrid``."""
    register("hybrid", Hybrid)
