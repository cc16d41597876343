"""A draft model with a tokenizer of its own, which proposes the tokens that it shares with the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specdec import Context, Draft, Request, Verdict, Window
from specdec.catalog import Loaded
from specdec.devices import uploaded
from specdec.interfaces import Env
from specdec.model import ArenaModel
from specdec_plugins.chain import Chain
from specdec_plugins.reading import caught_up, known_text
from specdec_plugins.vocabularies import Translation

MOST_PER_TOKEN = 4
"""The arena has room for this many draft tokens per target token; a row whose text is longer proposes no more."""


class TranslatedDraft(Draft):
    """A causal model with its own arena, tokens and lengths; its logits over the shared tokens make the proposals.

    The draft reads each row's text in its own tokens (``Translation``), made on the host from the row's history. A row
    proposes nothing while its text is empty, and no more once it does not fit the draft's positions or arena. Proposals
    that were accepted stay in the arena, because a shared token is one token of both; how many there were follows from
    the lengths that the host knows.

    ``loaded``: the draft and its tokenizer. Raises SpecdecError if the tokenizers share fewer than two tokens.

    Source: token-level intersection, Timor et al. 2502.05202, section 4.

    Example: ``TranslatedDraft(env, catalog.load("path/to/draft", device, dtype))``
    """

    def __init__(self, env: Env, loaded: Loaded) -> None:
        self._model = ArenaModel(loaded.model, env.ops, env.target.bits)
        self.weight_bytes = self._model.weight_bytes
        self._vocabulary, device = env.target.vocabulary, env.target.device
        self._translation = Translation(env.tokenizer, self._vocabulary, loaded.tokenizer, self._model.vocabulary)
        self._ids, self._draft_ids = self._translation.ids.to(device), self._translation.draft_ids.to(device)
        self._back = self._translation.back(self._vocabulary).to(device)
        room = env.max_length * min(self._translation.longest, MOST_PER_TOKEN) + 1 + env.max_window
        self._room = room if self._model.limit is None else min(room, self._model.limit)
        self._arena = self._model.arena(env.max_rows, self._room, env.max_window)
        self._wide, self._window = self._arena.max_window, env.max_window
        # Of each row: the draft's text, its length (which counts on past the room), the target tokens that it is made
        # of, the arena's cells that hold it, and the proposals that follow them.
        self._text = np.zeros((env.max_rows, self._room), dtype=np.int64)
        self._length, self._seen, self._held, self._drafted = (np.zeros(env.max_rows, dtype=np.int64) for _ in range(4))
        self._ours = False  # whether the last proposals were verified, and every window since was a root alone
        self._steps = 0  # steps since then, its own included: each emitted one token that was no proposal

    def admit(self, row: int, request: Request, prompt: tuple[int, ...]) -> None:
        """Prefill the draft's own arena with the prompt in the draft's tokens."""
        text = self._translation.text(prompt)
        self._length[row] = self._drafted[row] = 0
        self._append(row, text)
        self._seen[row] = len(prompt)
        self._held[row] = max(len(text) - 1, 0) if self._open(row) else 0
        for _ in self._model.prefill(self._arena, row, tuple(text[: self._held[row] + 1])):
            pass

    def move(self, source: int, row: int, request: Request, tokens: tuple[int, ...]) -> None:
        """Move the arena row and the text with the request."""
        self._arena.move(source, row)
        for array in (self._text, self._length, self._seen, self._held, self._drafted):
            array[row] = array[source]

    def propose(self, context: Context) -> Window:
        """Process each row's new text, then draft one shared token after another."""
        rows = slice(0, context.rows)
        for row in range(context.rows):
            self._read(row, context.history[row, self._seen[row] : context.length_host[row]])
        self._drafted[rows], self._ours = 0, False
        able = np.array([self._open(row) and self._length[row] > 0 for row in range(context.rows)])
        room_host = np.where(able, context.max_proposals_host, 0)
        k = int(room_host.max())
        if k < 1:
            return Window.root(context)
        room = torch.minimum(context.max_proposals, self._upload(room_host))
        chain = Chain(replace(context, max_proposals=room, max_proposals_host=room_host), self._vocabulary, self._ids)
        logits = self._catch_up(rows, able)
        longest = int(self._held[rows].max())
        for index in range(k):
            token = chain.propose(logits.index_select(-1, self._draft_ids).float())
            if index + 1 < k:
                logits = self._forward(known_text(self._back[token]), rows, longest + index)
                self._arena.committed[rows] += 1
        self._drafted[rows] = np.where(able, k - 1, 0)
        return chain.window()

    def observe(self, window: Window, verdict: Verdict, hidden: Tensor | None, own: bool) -> None:
        """Note how many tokens of the row were no proposals, as far as the host knows it."""
        if own:
            self._ours, self._steps = True, 1
        else:
            self._ours = self._ours and window.tokens.shape[1] == 1
            self._steps += 1

    def info(self) -> Mapping[str, int]:
        """The draft's forwards, prefill excluded; each runs all layers and the head."""
        return {"draft_forwards": self._model.forwards}

    def _open(self, row: int) -> bool:
        """Whether the row's text and one more window fit the draft; once they do not, they never will."""
        return bool(self._length[row] + self._window <= self._room)

    def _append(self, row: int, text: Sequence[int]) -> None:
        start, self._length[row] = self._length[row], self._length[row] + len(text)
        fits = text[: max(self._room - start, 0)]
        self._text[row, start : start + len(fits)] = fits

    def _read(self, row: int, tokens: npt.NDArray[np.int64]) -> None:
        """Append the row's new tokens to its text; cells of accepted proposals become cells of the text."""
        kept = min(max(len(tokens) - self._steps, 0), int(self._drafted[row])) if self._ours else 0
        self._append(row, self._translation.more(tokens.tolist()))
        self._seen[row] += len(tokens)
        # The last token is processed again where nothing follows it: its logits are not kept.
        self._held[row] = min(self._held[row] + kept, max(self._length[row] - 1, 0)) if self._open(row) else 0

    def _catch_up(self, rows: slice, able: npt.NDArray[np.bool_]) -> Tensor:
        """Process the text that the arena does not hold; returns logits [B, 1, D'] after each row's last token.

        Rows that cannot propose are padding: they hold nothing.
        """
        self._arena.committed[rows] = self._upload(self._held[rows])
        for row in np.flatnonzero(able).tolist():
            while self._length[row] - self._held[row] > self._wide:
                start = int(self._held[row])
                chunk, alone = self._text[row : row + 1, start : start + self._wide], slice(row, row + 1)
                self._forward(known_text(self._upload(chunk)), alone, start)
                self._arena.committed[alone] += self._wide
                self._held[row] += self._wide
        held = self._held[rows]
        missing = np.where(able, self._length[rows] - held, 0)
        slots = held[:, None] + np.arange(missing.max())
        tokens = np.take_along_axis(self._text[rows], np.minimum(slots, self._room - 1), axis=1)
        longest, last = int(held.max()), self._upload(np.maximum(missing - 1, 0))
        logits = caught_up(lambda window: self._forward(window, rows, longest), self._upload(tokens), last)
        self._held[rows] += missing
        self._arena.committed[rows] = self._upload(self._held[rows])
        return logits

    def _forward(self, window: Window, rows: slice, longest: int) -> Tensor:
        return self._model.forward(self._arena, window, rows, longest)[0]

    def _upload(self, array: npt.NDArray[np.int64]) -> Tensor:
        return uploaded(self._arena.committed.device, array)[0]
