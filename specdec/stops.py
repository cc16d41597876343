"""When a request ends: token by token, so that nothing past the stop is ever counted or shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from specdec.errors import SpecdecError
from specdec.request import SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FinishReason = Literal["eos", "stop", "length"]


class StopWatcher:
    """Watches one request's output. ``limit`` is the number of tokens it may emit.

    A stop string may begin and end anywhere in the output, also inside one accepted block or one
    token. The token that completes it is the last one.
    """

    def __init__(self, params: SamplingParams, limit: int, tokenizer: PreTrainedTokenizerBase | None) -> None:
        if params.stop and tokenizer is None:
            raise SpecdecError(f"stop strings {params.stop} need a tokenizer; build the engine with one")
        self._eos = frozenset(params.eos)
        self._stop = params.stop
        self._limit = limit
        self._tokenizer = tokenizer
        self._output: list[int] = []
        # A token adds at least a byte and a character has at most four: this many tokens hold any stop
        # string, and four more hold the character that a cut may have torn.
        self._tail = 4 * max(map(len, params.stop), default=0) + 4

    def feed(self, token: int) -> FinishReason | None:
        """Take the next token; says why the request ends with it, or None to go on."""
        self._output.append(token)
        if token in self._eos:
            return "eos"
        if self._stop and self._tokenizer is not None:
            text = self._tokenizer.decode(self._output[-self._tail :])
            if any(stop in text for stop in self._stop):
                return "stop"
        return "length" if len(self._output) >= self._limit else None
