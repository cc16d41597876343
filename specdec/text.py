"""Text as it is generated: tokens in, the text that can be shown now out.

A token of a byte-level vocabulary can be a part of a character, and a stop string can begin in one token and end in
another. What the next token may still change is held back until it is decided.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec.characters import decoded
from specdec.stops import FinishReason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedTokenizerBase

BROKEN = "\ufffd"
"""What a decoder writes for bytes that are no character, or no whole one yet."""

_PART = 3  # tokenizers that write a mark for each byte write up to three for a part of a character
# UTF-8 is in step again three bytes after any byte, and a mark stands for at most three bytes. This many tokens, of at
# least a byte each, therefore decode to the same end as the whole output.
_CONTEXT = 16


class TextStream:
    """Turns the tokens of one request into text, piece by piece; all pieces together are the text of its output.

    Shows no part of a character, and no text that may be the beginning of one of the ``stop`` strings; of a request
    that ends with ``stop`` nothing is shown from the start of the stop string on. Special tokens are not shown. What a
    token costs does not depend on how many came before it.

    Example: ``stream = TextStream(tokenizer, stop=("END",))``, then ``print(stream.feed(token), end="")`` for each
    token, with the finish reason at the last.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop: Sequence[str] = ()) -> None:
        self._tokenizer, self._stop = tokenizer, tuple(stop)
        added = tokenizer.added_tokens_decoder.items()
        self._special = {*tokenizer.all_special_ids, *(number for number, token in added if token.special)}
        self._tail: list[int] = []  # the last tokens
        self._text = ""  # what they decode to
        self._sure = 0  # characters of it that no further token changes
        self._held = ""  # decided text, with that of special tokens, that may be the beginning of a stop string
        self._shown: list[bool] = []  # for each character of it: is it shown, or part of a special token?
        self._longest = max(map(len, self._stop), default=0)

    def feed(self, token: int, finish: FinishReason | None = None) -> str:
        """Add the next token; returns the text that can be shown now, which may be empty.

        ``finish`` is given with the last token of the request: what was held back is then decided.
        """
        if token in self._special:
            self._hold(len(self._text), shown=True)  # a special token ends a character, whole or not
            self._extend(token)
            self._hold(len(self._text), shown=False)
        else:
            self._extend(token)
            sure = len(self._text)
            while finish is None and sure > max(self._sure, len(self._text) - _PART) and self._text[sure - 1] == BROKEN:
                sure -= 1
            self._hold(sure, shown=True)
        if len(self._tail) > 2 * _CONTEXT:
            unsure = len(self._text) - self._sure
            self._tail = self._tail[-_CONTEXT:]
            self._text = decoded(self._tokenizer, self._tail)
            self._sure = len(self._text) - unsure
        return self._release(finish)

    def _extend(self, token: int) -> None:
        text = decoded(self._tokenizer, [*self._tail, token])
        if text == self._text and self._tail and not decoded(self._tokenizer, [token]):
            return  # an id without text, as a padded vocabulary has: a tail of such would be no context
        self._tail.append(token)
        self._text = text

    def _hold(self, sure: int, shown: bool) -> None:
        """The first ``sure`` characters of the tail's text are decided."""
        new = self._text[self._sure : sure]
        self._held += new
        self._shown += [shown] * len(new)
        self._sure = max(self._sure, sure)

    def _release(self, finish: FinishReason | None) -> str:
        """Take what is shown now out of what is held."""
        held, end = self._held, len(self._held)
        if finish is None:
            end -= next((n for n in range(min(end, self._longest - 1), 0, -1) if self._may_stop(held[-n:])), 0)
        elif finish == "stop":
            end = min((place for stop in self._stop if (place := held.find(stop)) >= 0), default=end)
        shown = "".join(char for char, is_shown in zip(held[:end], self._shown, strict=False) if is_shown)
        self._held, self._shown = held[end:], self._shown[end:]
        return shown

    def _may_stop(self, end: str) -> bool:
        return any(len(stop) > len(end) and stop.startswith(end) for stop in self._stop)


def shown_text(
    tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int], finish: FinishReason, stop: Sequence[str] = ()
) -> str:
    """The text of a finished output as ``TextStream`` shows it: without special tokens, and cut before a stop string.

    Example: ``shown_text(tokenizer, done.tokens, done.finish_reason, done.request.params.stop)``
    """
    stream = TextStream(tokenizer, stop)
    *before, last = tokens
    return "".join([*map(stream.feed, before), stream.feed(last, finish)])
