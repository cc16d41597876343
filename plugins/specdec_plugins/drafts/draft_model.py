"""draft_model: a smaller model drafts ("vanilla" speculative decoding)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from specdec import Context, Draft, Request, SpecdecError, Verdict, Window, catalog, hookimpl
from specdec.arena import KeptCells
from specdec.errors import unknown
from specdec.interfaces import DraftFactory, Env
from specdec.model import ArenaModel
from specdec.runtime import addresses
from specdec_plugins.chain import Chain
from specdec_plugins.drafts.translated import TranslatedDraft
from specdec_plugins.entries import RESTS
from specdec_plugins.growth import wanted
from specdec_plugins.reading import caught_up, known_text

DEFAULT_SHARE = 10
"""Without a model, 1 in this many layers drafts: untrained early exits agree little at any depth."""

VOCABULARIES = ("same", "intersection")
"""What a draft's vocabulary may be: the target's, or any that shares tokens with it."""

ModelName = Annotated[str | None, "name, folder or hub id; none: the target's own first layers"]
FirstLayers = Annotated[int | None, "without a model: how many of the target's layers draft"]


class DraftModel(Draft):
    """A causal model with its own arena that shares the target's token ids.

    ``model`` is a name, folder or hub id, as for `--specdec-target`; without it, the target's own first ``layers``
    layers draft with its norm and head and share its weights (early exit; untrained, so acceptance is low).
    Vocabularies padded to different sizes are accepted; a different tokenizer is refused.

    A sampled proposal is drawn from the draft's processed distribution q, which is passed to policies that use it. For
    a controller that reads confidences, a proposal's is its probability by the model, before any processor.

    Source: Leviathan et al. 2211.17192; Chen et al. 2302.01318.
    """

    def __init__(self, env: Env, model: ModelName = None, layers: FirstLayers = None) -> None:
        if model is not None and layers is not None:
            raise SpecdecError("draft_model takes model or layers, not both: layers are the target's own")
        if model is None:
            total = len(env.target.layers)
            network = env.target.twin(max(1, total // DEFAULT_SHARE) if layers is None else layers)
        else:
            loaded = catalog.load(model, env.target.device, env.target.dtype)
            _require_same_ids(env.tokenizer.get_vocab(), loaded.tokenizer.get_vocab(), model)
            network = loaded.model
        self._model = ArenaModel(network, env.ops, env.target.bits)
        if self._model.limit is not None and self._model.limit < env.max_length and model is not None:
            raise SpecdecError(
                f"the draft {model!r} has {self._model.limit} positions and sequences may reach {env.max_length}; "
                "choose another draft or shorter prompts and outputs"
            )
        self.weight_bytes, self.small_ops = self._model.weight_bytes, self._model.own_threads
        self._vocabulary, self._confident = env.target.vocabulary, env.confidence
        # The catch-up window has 2 slots after a speculative step and grows in each step without a proposal.
        self._arena = self._model.arena(env.max_rows, env.max_length + 2, env.max_window + 1)
        self._runtime, self._most_tokens, self._forwards = env.runtime, env.max_length, 0
        self._behind = 1  # upper bound, known to the host, on tokens that the draft has not seen
        self._fed = np.zeros(env.max_rows, dtype=np.int64)  # tokens of each row that it has certainly seen
        self._asked = 0
        self._proposed: Window | None = None
        self._unread: set[int] = set()  # rows whose text waits to be read
        self._rested = 0  # steps since the last proposals

    def admit(self, row: int, request: Request, prompt: tuple[int, ...]) -> None:
        """Prefill the draft's own arena, or let the prompt wait while the draft is not asked."""
        self._begun(row, prompt, 0)

    def _begun(self, row: int, prompt: tuple[int, ...], first: int) -> None:
        self._unread.discard(row)
        if self._rested < RESTS:
            self._prefill(row, prompt, first)
        else:
            self._unread.add(row)
            self._fed[row] = first
            self._arena.committed[row].fill_(first)

    def _prefill(self, row: int, prompt: tuple[int, ...], first: int) -> int:
        """Read a text but its last token, from place ``first`` on; returns the number of forwards."""
        self._fed[row] = len(prompt) - 1
        inside = tuple(min(token, self._model.vocabulary - 1) for token in prompt)
        return sum(1 for _ in self._model.prefill(self._arena, row, inside, first))

    def keep(self, row: int, tokens: tuple[int, ...]) -> object:
        """The cells of the tokens that the draft has certainly seen."""
        return self._arena.keep(row, min(int(self._fed[row]), len(tokens) - 1), self._arena.max_window)

    def resume(self, row: int, request: Request, prompt: tuple[int, ...], kept: object, first: int) -> None:
        """Restore the cells of the common tokens, and prefill the rest."""
        assert isinstance(kept, KeptCells)
        usable = 0 if kept.wrapped and kept.length > first else min(kept.length, first)
        if usable:
            self._arena.restore(row, kept, usable)
        self._begun(row, prompt, usable)

    def move(self, source: int, row: int, request: Request, tokens: tuple[int, ...]) -> None:
        """Move the arena row with the request."""
        self._arena.move(source, row)
        self._unread.discard(row)
        if source in self._unread:
            self._unread.remove(source)
            self._unread.add(row)
        self._fed[row] = self._fed[source]

    def propose(self, context: Context) -> Window:
        """Process the newly committed tokens, then draft one token after another."""
        k = int(context.max_proposals_host.max())
        self._asked, behind = k, self._catching_up(context)
        self._forwards += k - 1
        steps = self._runtime.steps((self, context.kind, k, behind))
        self._proposed = steps.part(self._drafted, context, k, behind, self._longest(context))
        return self._proposed

    def _drafted(self, context: Context, k: int, behind: int, longest: int) -> Window:
        rows, chain = slice(0, context.rows), Chain(context, self._vocabulary, confident=self._confident)
        logits = self._catch_up(context, behind, longest)
        for index in range(k):
            token = chain.propose(self._over_target(logits))
            if index + 1 < k:
                logits = self._forward(known_text(token), rows, longest + index)
                self._arena.committed[rows] += 1
        return chain.window()

    def _longest(self, context: Context) -> int:
        return self._runtime.longest(int(context.length_host.max()), self._most_tokens)

    def observe(self, window: Window, verdict: Verdict, hidden: Tensor | None, own: bool) -> None:
        """Roll back rejected proposals. The last proposal was never processed, so one or two tokens are missing then.

        If another draft's proposals were verified instead, or beside its own in a tree, only as many are kept as the
        accepted path begins with.
        """
        if not self._asked:
            self._rested += 1
            self._behind += window.tokens.shape[1]
            return
        assert self._proposed is not None
        fed, self._asked = self._asked - 1, 0
        if own:
            self._behind = 2
            kind = self, "observe", fed, addresses(verdict.num_accepted, verdict.next)
            self._runtime.steps(kind).part(self._rolled_back, verdict.num_accepted, fed)
            return
        ours, theirs = self._proposed.tokens[:, 1:], window.tokens.gather(1, verdict.path[:, 1:].clamp(min=0))
        size = min(ours.shape[1], theirs.shape[1])
        same = (ours[:, :size] == theirs[:, :size]).long().cumprod(dim=1).sum(dim=1)
        self._rolled_back(torch.minimum(verdict.num_accepted, same), fed)
        self._behind = window.tokens.shape[1] + 1

    def _rolled_back(self, right: Tensor, fed: int) -> None:
        """Keep the first ``right`` int64 [B] of the ``fed`` proposals that were processed."""
        committed = self._arena.committed[: len(right)]
        committed += right.clamp(max=fed) - fed

    def info(self) -> Mapping[str, int]:
        """The draft's forwards, prefill excluded; each runs all layers and the head."""
        return {"draft_forwards": self._forwards}

    def _catching_up(self, context: Context) -> int:
        """How many tokens a row may lack; they count as processed, and their forwards as run."""
        self._rested = 0
        for row in sorted(self._unread.intersection(range(context.rows))):
            text = tuple(context.history[row, : context.length_host[row]].tolist())
            self._forwards += self._prefill(row, text, int(self._fed[row]))
            self._unread.discard(row)
        fed = self._fed[: context.rows]
        # After windows of another draft, the row's own length gives a tighter bound.
        behind = min(self._behind, int((context.length_host - fed).max()))
        fed[:], self._behind = context.length_host, 1
        self._forwards += -(-behind // self._arena.max_window)
        return behind

    def _catch_up(self, context: Context, behind: int, longest: int) -> Tensor:
        """Process tokens[committed:length] of every row, at most ``behind``; returns logits [B, 1, V] after each row's
        pending token."""
        rows, found = slice(0, context.rows), None
        while behind > 0:
            width = min(behind, self._arena.max_window)
            picked, missing = self._feed(context, rows, longest, width)
            # A row that was complete before this chunk keeps its logits.
            found = picked if found is None else torch.where((missing > 0)[:, None, None], picked, found)
            behind -= width
        assert found is not None
        return found

    def _feed(self, context: Context, rows: slice, longest: int, width: int) -> tuple[Tensor, Tensor]:
        committed = self._arena.committed[rows]
        slots = torch.arange(width, device=committed.device)
        seen = (committed[:, None] + slots).clamp(max=context.tokens.shape[1] - 1)
        tokens = context.tokens.gather(1, seen)
        missing = (context.length - committed).clamp(max=width)
        logits = caught_up(lambda window: self._forward(window, rows, longest), tokens, (missing - 1).clamp(min=0))
        committed += missing
        return logits, missing

    def _forward(self, window: Window, rows: slice, longest: int) -> Tensor:
        """Logits of a window with token ids clamped to the draft's vocabulary: this can lower acceptance only."""
        inside = Window(window.tokens.clamp(max=self._model.vocabulary - 1), window.parents, window.width)
        return self._model.forward(self._arena, inside, rows, longest)[0]

    def _distribution(self, context: Context, logits: Tensor, depth: int, paths: Tensor | None = None) -> Tensor:
        return wanted(context, self._over_target(logits), depth, paths)

    def _over_target(self, logits: Tensor) -> Tensor:
        """Cut or pad the draft's logits to the target's vocabulary."""
        extra = self._vocabulary - logits.shape[-1]
        return torch.nn.functional.pad(logits.float(), (0, extra), value=float("-inf")) if extra else logits


def _require_same_ids(target: Mapping[str, int], draft: Mapping[str, int], name: str) -> None:
    different = sorted(t for t in target.keys() | draft.keys() if target.get(t) != draft.get(t))
    if different:
        token = different[0]
        raise SpecdecError(
            f"the draft {name!r} has another tokenizer: {len(different)} tokens differ, for example {token!r} is "
            f"{target.get(token)} in the target and {draft.get(token)} in the draft; a draft must share the target's "
            "token ids, or draft only the tokens that both have: draft_model(model=…, vocabulary=intersection)"
        )


def draft_model(
    env: Env,
    model: ModelName = None,
    layers: FirstLayers = None,
    vocabulary: Annotated[
        str, "same: the model must have the target's token ids; intersection: it drafts the tokens that both have"
    ] = "same",
) -> Draft:
    """A smaller model drafts; without one, the target's own first layers.

    With ``vocabulary=same`` a model with another tokenizer is refused. With ``vocabulary=intersection`` the model reads
    the text in its own tokens and proposes the tokens that both tokenizers have. Raises SpecdecError for another
    vocabulary, and for ``intersection`` without a model.

    Source: Leviathan et al. 2211.17192; Chen et al. 2302.01318; intersection, Timor et al. 2502.05202.

    Example: ``draft_model(model=path/to/draft, vocabulary=intersection)``
    """
    if vocabulary not in VOCABULARIES:
        raise unknown("vocabulary", str(vocabulary), VOCABULARIES)
    if vocabulary == "same":
        return DraftModel(env, model, layers)
    if model is None or layers is not None:
        raise SpecdecError(
            "vocabulary=intersection is for a model with a tokenizer of its own; give draft_model a model and no layers"
        )
    return TranslatedDraft(env, catalog.load(model, env.target.device, env.target.dtype))


@hookimpl
def specdec_register_drafts(register: Callable[[str, DraftFactory | str], None]) -> None:
    """Register ``draft_model``, and ``vanilla`` for ``draft_model``."""
    register("draft_model", draft_model)
    register("vanilla", "draft_model")
