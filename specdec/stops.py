"""The end of a request, checked token by token, so that no token after the stop is counted or shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from specdec.characters import decoded
from specdec.errors import SpecdecError
from specdec.request import SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FinishReason = Literal["eos", "stop", "length"]


class StopWatcher:
    """Watches the output of one request. ``limit`` is the number of tokens that it may emit.

    A stop string may begin and end anywhere in the output, also inside one accepted block or one
    token. The token that completes it is the last token of the output.
    """

    def __init__(self, params: SamplingParams, limit: int, tokenizer: PreTrainedTokenizerBase | None) -> None:
        if params.stop and tokenizer is None:
            raise SpecdecError(f"stop strings {params.stop} need a tokenizer; build the engine with one")
        self._eos = frozenset(params.eos)
        self._stop = params.stop
        self._limit = limit
        self._tokenizer = tokenizer
        self._output: list[int] = []
        # A token adds at least one byte and a character has at most four bytes, so this many tokens contain any stop
        # string; four more contain the character that the start of the tail may have split.
        self._tail = 4 * max(map(len, params.stop), default=0) + 4

    def feed(self, token: int) -> FinishReason | None:
        """Add the next token; returns the reason why the request ends with it, or None if it continues."""
        self._output.append(token)
        if token in self._eos:
            return "eos"
        if self._stop and self._tokenizer is not None:
            text = decoded(self._tokenizer, self._output[-self._tail :])
            if any(stop in text for stop in self._stop):
                return "stop"
        return "length" if len(self._output) >= self._limit else None
