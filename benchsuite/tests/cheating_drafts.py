"""Drafts that use what is not theirs: what they are lent, what they kept too long, and the target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from specdec import Context, Draft, Request, Verdict, Window
from specdec_plugins.drafts.draft_model import DraftModel


class RepeatPending(Draft):
    """Proposes the pending token again: no fault."""

    def __init__(self, env: Any) -> None: ...

    def propose(self, context: Context) -> Window:
        k = int(context.max_proposals_host.max())
        return Window.chain(context.pending, context.pending[:, None].expand(-1, k), context.max_proposals)

    def narrowed(self, context: Context, by: Tensor | None) -> Window:
        """The same with fewer proposals, as numbers say that are the same for equal texts."""
        window = RepeatPending.propose(self, context)
        if by is None or len(by) != context.rows:
            return window
        drawn = (by.flatten(1).float().nan_to_num().sum(dim=1) * 1000).long() % 4
        return replace(window, width=torch.minimum(window.width, 1 + drawn))


class Scribe(RepeatPending):
    """Scales the target's hidden states in place."""

    needs_hidden = True

    def observe(self, window: Window, verdict: Verdict, hidden: Tensor | None, own: bool) -> None:
        assert hidden is not None
        hidden.mul_(0.5)


class EarlyScribe(RepeatPending):
    """Scales the hidden states of a prompt in place."""

    needs_hidden = True

    def prefilled(self, row: int, tokens: Tensor, start: int, hidden: Tensor) -> None:
        hidden.mul_(0.5)


class Corrector(RepeatPending):
    """Counts one more proposal as accepted."""

    def observe(self, window: Window, verdict: Verdict, hidden: Tensor | None, own: bool) -> None:
        verdict.num_accepted.add_(1)


class Historian(RepeatPending):
    """Writes to the host's copy of the text."""

    def propose(self, context: Context) -> Window:
        context.history[:, 0] = 7
        return super().propose(context)


class Haggler(RepeatPending):
    """Raises its rows' room on the host."""

    def propose(self, context: Context) -> Window:
        window = super().propose(context)
        context.max_proposals_host[:] += 1
        return window


class Noiseless(RepeatPending):
    """Writes to the noise of the requests."""

    def propose(self, context: Context) -> Window:
        context.params.stream.zero_()
        return super().propose(context)


class Clinging(RepeatPending):
    """Keeps the target's hidden states until its next proposal, which follows from them."""

    needs_hidden = True
    _seen: Tensor | None = None

    def propose(self, context: Context) -> Window:
        return self.narrowed(context, self._seen)

    def observe(self, window: Window, verdict: Verdict, hidden: Tensor | None, own: bool) -> None:
        self._seen = hidden


class ClingingToPrompts(RepeatPending):
    """Keeps the hidden states of a prompt for all proposals after it."""

    needs_hidden = True

    def __init__(self, env: Any) -> None:
        self._seen: dict[int, Tensor] = {}

    def prefilled(self, row: int, tokens: Tensor, start: int, hidden: Tensor) -> None:
        self._seen[row] = hidden[:, 0]

    def propose(self, context: Context) -> Window:
        seen = [self._seen[row] for row in range(context.rows) if row in self._seen]
        return self.narrowed(context, torch.cat(seen) if seen else None)


class Nostalgic(RepeatPending):
    """Keeps a step's context, and proposes by its lengths in the next."""

    _before: Context | None = None

    def propose(self, context: Context) -> Window:
        before, self._before = self._before, context
        return self.narrowed(context, None if before is None else torch.tensor(before.length_host)[:, None] * 1e-3)


class Reviewing(RepeatPending):
    """Keeps a verdict, and proposes as many tokens as it accepted."""

    _verdict: Verdict | None = None

    def propose(self, context: Context) -> Window:
        return self.narrowed(context, None if self._verdict is None else self._verdict.num_accepted[:, None] * 1e-3)

    def observe(self, window: Window, verdict: Verdict, hidden: Tensor | None, own: bool) -> None:
        self._verdict = verdict


class Unseeded(RepeatPending):
    """Draws by noise that no seed and no request decides."""

    def propose(self, context: Context) -> Window:
        return self.narrowed(context, torch.rand(context.rows, 1))


class Widthless(RepeatPending):
    """Says of rows without proposals that they have no slot."""

    def propose(self, context: Context) -> Window:
        window = super().propose(context)
        return replace(window, width=torch.where(context.length % 3 == 0, 0, window.width))


class Doubled(DraftModel):
    """Returns q in another precision."""

    def propose(self, context: Context) -> Window:
        window = super().propose(context)
        return window if window.q is None else replace(window, q=window.q.double())


class Dozing(RepeatPending):
    """Proposes the first token of a text, but for a text that goes on the last of what it kept."""

    def __init__(self, env: Any) -> None:
        self._token: dict[int, int] = {}

    def admit(self, row: int, request: Request, prompt: tuple[int, ...]) -> None:
        self._token[row] = prompt[0]

    def move(self, source: int, row: int, request: Request, tokens: tuple[int, ...]) -> None:
        self._token[row] = self._token[source]

    def keep(self, row: int, tokens: tuple[int, ...]) -> object:
        return tokens[-1]

    def resume(self, row: int, request: Request, prompt: tuple[int, ...], kept: object, first: int) -> None:
        assert isinstance(kept, int)
        self._token[row] = kept

    def propose(self, context: Context) -> Window:
        rows = range(context.rows)
        return Window.ragged(context, [[self._token[row]] * int(context.max_proposals_host[row]) for row in rows])


class Oracular(RepeatPending):
    """Asks the target itself for its next token."""

    def __init__(self, env: Any) -> None:
        self._target, self._arena = env.target, env.target.arena(env.max_rows, env.max_length, 1)

    def propose(self, context: Context) -> Window:
        self._target.forward(self._arena, Window.root(context), slice(0, context.rows), 0)
        return super().propose(context)


class Rereading(RepeatPending):
    """Has the target read each prompt once more."""

    def __init__(self, env: Any) -> None:
        self._target, self._arena = env.target, env.target.arena(env.max_rows, env.max_length, 1)

    def admit(self, row: int, request: Request, prompt: tuple[int, ...]) -> None:
        for _ in self._target.prefill(self._arena, row, prompt):
            pass


class LayerScribe(RepeatPending):
    """Scales the outputs of layers in place."""

    hidden_layers = (0, 1)

    def observe(self, window: Window, verdict: Verdict, hidden: Tensor | None, own: bool) -> None:
        assert hidden is not None
        hidden[:, :, 1].mul_(0.5)


class ClingingToLayers(Clinging):
    """Keeps the output of one of two layers until its next proposal."""

    needs_hidden, hidden_layers = False, (0, 1)

    def observe(self, window: Window, verdict: Verdict, hidden: Tensor | None, own: bool) -> None:
        assert hidden is not None
        self._seen = hidden[:, :, 0]


class Trespassing(RepeatPending):
    """Reads a layer that it did not ask for from what it is given."""

    hidden_layers = (0,)

    def observe(self, window: Window, verdict: Verdict, hidden: Tensor | None, own: bool) -> None:
        assert hidden is not None
        hidden[:, :, 1].sum()


class Listening(RepeatPending):
    """Reads a layer that it did not ask for from the target's modules."""

    def __init__(self, env: Any) -> None:
        env.target.model.get_input_embeddings().register_forward_hook(lambda module, given, out: None)


class Eraser(RepeatPending):
    """Writes to the verified logits."""

    needs_logits = True

    def observe(self, window: Window, verdict: Verdict, hidden: Tensor | None, own: bool) -> None:
        assert verdict.logits is not None
        verdict.logits.zero_()


class ClingingToLogits(Clinging):
    """Keeps the verified logits until its next proposal."""

    needs_hidden, needs_logits = False, True

    def observe(self, window: Window, verdict: Verdict, hidden: Tensor | None, own: bool) -> None:
        self._seen = verdict.logits


class Presuming(RepeatPending):
    """Reads the verified logits without asking for them."""

    def observe(self, window: Window, verdict: Verdict, hidden: Tensor | None, own: bool) -> None:
        verdict.logits.argmax(dim=-1)  # type: ignore[union-attr]


class Unsure(RepeatPending):
    """Has no number for its confidence."""

    @staticmethod
    def sure(context: Context, window: Window) -> Tensor:
        """The confidence [B, W] of a window."""
        return torch.full_like(window.tokens, torch.nan, dtype=torch.float32)

    def propose(self, context: Context) -> Window:
        window = super().propose(context)
        return replace(window, confidence=self.sure(context, window))


class Overconfident(Unsure):
    """Is surer than certain."""

    @staticmethod
    def sure(context: Context, window: Window) -> Tensor:
        return torch.full_like(window.tokens, 1.5, dtype=torch.float32)


class Misplaced(Unsure):
    """Gives each row the confidence of another."""

    @staticmethod
    def sure(context: Context, window: Window) -> Tensor:
        own = (context.length % 7)[:, None] / 10
        return own.roll(1, dims=0).expand(window.tokens.shape)


class RootlessConfidence(Unsure):
    """Has a confidence for each proposal, and none for the pending token's slot."""

    @staticmethod
    def sure(context: Context, window: Window) -> Tensor:
        return torch.ones_like(window.tokens[:, 1:], dtype=torch.float32)


HIDDEN: dict[str, Any] = {"hidden": True}
OVERWRITTEN = "planted keeps nothing that it was lent.*something else where that is overwritten"
CHEATING_DRAFTS: list[tuple[Callable[..., Draft], dict[str, Any], str, str]] = [
    (Scribe, HIDDEN, "writes_to_nothing", r"observe changed \['hidden'\]"),
    (EarlyScribe, HIDDEN, "writes_to_nothing", r"prefilled changed \['hidden'\]"),
    (Corrector, {}, "writes_to_nothing", r"observe changed \['Verdict.num_accepted'\]"),
    (Historian, {}, "writes_to_nothing", r"propose changed \['Context.history'\]"),
    (Haggler, {}, "writes_to_nothing", r"propose changed \['Context.max_proposals_host'\]"),
    (Noiseless, {}, "writes_to_nothing", r"propose changed \['StackedParams.stream'\]"),
    (Clinging, HIDDEN, "keeps_nothing_that_it_was_lent", OVERWRITTEN),
    (ClingingToPrompts, HIDDEN, "keeps_nothing_that_it_was_lent", OVERWRITTEN),
    (Nostalgic, {"memoryless": False}, "keeps_nothing_that_it_was_lent", OVERWRITTEN),
    (Reviewing, {"memoryless": False}, "keeps_nothing_that_it_was_lent", OVERWRITTEN),
    (Unseeded, {"memoryless": False}, "keeps_nothing_that_it_was_lent", "proposes the same in every run.*differ"),
    (LayerScribe, HIDDEN, "writes_to_nothing", r"observe changed \['hidden'\]"),
    (ClingingToLayers, HIDDEN, "keeps_nothing_that_it_was_lent", OVERWRITTEN),
    (Trespassing, HIDDEN, "is_what_it_claims", "IndexError.*index 1 is out of bounds"),
    (Listening, {}, "is_what_it_claims", "reads states that it asks for.*hooks into .*embed_tokens"),
    (Eraser, {}, "writes_to_nothing", r"observe changed \['Verdict.logits'\]"),
    (ClingingToLogits, {}, "keeps_nothing_that_it_was_lent", OVERWRITTEN),
    (Presuming, {}, "is_what_it_claims", "'NoneType' object has no attribute 'argmax'"),
    (Unsure, {}, "well_formed", "a confidence of nan, which is no chance"),
    (Overconfident, {}, "well_formed", "a confidence of 1.5, which is no chance"),
    (Misplaced, {}, "follows_from", "windows are not what it proposes"),
    (RootlessConfidence, {}, "is_what_it_claims", "confidence None or floats"),
    (Widthless, {}, "well_formed", "a width below 1"),
    (Doubled, {"sampled": True}, "well_formed", "q of torch.float64"),
    (Dozing, {}, "goes_on", "goes on with a text that it kept.*of 3 texts"),
    (Oracular, {}, "replays_only", "replays=False.*replays=True.*forwards of the target in its propose"),
    (Rereading, {}, "replays_only", "replays=False.*replays=True.*forwards of the target in its admit"),
]
"""Each with its claims, a part of the name of the check that finds it, and what that says."""
