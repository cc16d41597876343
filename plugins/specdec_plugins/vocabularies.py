"""Two tokenizers' vocabularies: the tokens that both have, and the target's text in the draft's tokens."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import torch
from tokenizers import Tokenizer, models
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from specdec import SpecdecError

Key = tuple[bool, bytes]
"""What a token stands for: whether it is special, and its bytes."""


class Spelling:
    """The bytes that each token of a tokenizer stands for, in whatever alphabet its vocabulary is written.

    ``keys`` maps an id below ``size`` (the rows of the model's head) to (special, bytes); ``ids`` is the reverse. Where
    several tokens stand for the same bytes, as ``A`` and ``<0x41>`` do, ``ids`` has the one that text is made of.
    Vocabularies at byte level (``Ġ``: a space) and of sentencepiece (``▁``: a space, ``<0x41>``: a byte) are read; in
    any other a token is taken as it is written. Raises SpecdecError for a tokenizer without a ``tokenizer.json``.

    Example: ``Spelling(tokenizer, 49152).keys[tokenizer.get_vocab()["Ġthe"]]`` is ``(False, b" the")``
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, size: int) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, Tokenizer):
            raise SpecdecError(
                f"a {type(tokenizer).__name__} does not say how its tokens are spelt; vocabulary=intersection takes "
                "tokenizers with a tokenizer.json"
            )
        decoder = json.dumps(json.loads(backend.to_str())["decoder"])
        self._of_bytes = "ByteLevel" in decoder
        self._of_pieces = "Metaspace" in decoder or "\\u2581" in decoder
        self._falls_back = "ByteFallback" in decoder
        self._merges = backend.model if isinstance(backend.model, models.BPE) else None
        added = tokenizer.added_tokens_decoder
        special = {*tokenizer.all_special_tokens, *(token.content for token in added.values() if token.special)}
        self.keys: dict[int, Key] = {}
        odd = set()
        for token, index in tokenizer.get_vocab().items():
            if index < size:
                # Added tokens are written as they are, in any alphabet.
                plain = index in added or token in special
                spelt = token.encode() if plain else self._bytes(token)
                self.keys[index] = token in special, spelt
                if self._falls_back and _byte(token) is not None:
                    odd.add(index)
        self.ids: dict[Key, int] = {}
        for index in sorted(self.keys, key=lambda index: (index in odd, index)):
            if self.keys[index][1]:
                self.ids.setdefault(self.keys[index], index)
        self._longest = max((len(spelt) for _, spelt in self.ids), default=0)

    def _bytes(self, token: str) -> bytes:
        if self._of_bytes and all(char in _BYTES for char in token):
            return bytes(_BYTES[char] for char in token)
        if self._falls_back and (byte := _byte(token)) is not None:
            return byte
        return (token.replace("▁", " ") if self._of_pieces else token).encode()

    def encode(self, text: bytes) -> tuple[int, ...]:
        """The ids of a piece of text, which need not be whole characters; bytes without a token are left out.

        The tokenizer's own merges decide where they cover the text, else the longest token that fits: unlike
        ``tokenizer.encode`` this puts no space before the text.
        """
        piece = "".join(_CHARS[byte] for byte in text) if self._of_bytes else text.decode(errors="replace")
        if self._merges is not None:
            merged = self._merges.tokenize(piece.replace(" ", "▁") if self._of_pieces else piece)
            found = tuple(token.id for token in merged)
            if b"".join(self.keys.get(index, (True, b""))[1] for index in found) == text:
                return found
        return tuple(self._longest_first(text))

    def _longest_first(self, text: bytes) -> Iterable[int]:
        start = 0
        while start < len(text):
            ends = range(min(len(text), start + self._longest), start, -1)
            end = next((end for end in ends if (False, text[start:end]) in self.ids), None)
            if end is not None:
                yield self.ids[False, text[start:end]]
            start = end or start + 1


class Translation:
    """The tokens that a target and a draft share, and the target's tokens in the draft's.

    Tokens are shared if they stand for the same bytes, special ones if both are special. ``ids`` and ``draft_ids``
    int64 [D], on the CPU: shared token i in the target's and in the draft's ids, in the order of the target's.
    ``longest``: the most draft tokens of one target token.

    A text is translated token by token: a shared token to itself, any other to the draft's encoding of its bytes, and a
    special token that the draft lacks to nothing. So the translation of a longer text begins with that of a shorter
    one. It may differ from the draft's own encoding of the whole text, which lowers acceptance and changes nothing
    else. If the draft's tokenizer puts a token before every text (``<s>``), translations begin with it too.

    Raises SpecdecError if fewer than two tokens are shared.

    Source: token-level intersection, Timor et al. 2502.05202, section 4.

    Example: ``Translation(target.tokenizer, 49152, draft.tokenizer, 32000).text([42, 7])``
    """

    def __init__(
        self, target: PreTrainedTokenizerBase, target_size: int, draft: PreTrainedTokenizerBase, draft_size: int
    ) -> None:
        theirs, ours = Spelling(target, target_size), Spelling(draft, draft_size)
        shared = {index: ours.ids[key] for key, index in theirs.ids.items() if key in ours.ids}
        if len(shared) < 2:
            raise SpecdecError(
                f"the target has {len(theirs.keys)} tokens and the draft {len(ours.keys)}, with {len(shared)} in "
                "common; a draft needs two to choose from: choose one whose tokens are spelt like the target's"
            )
        self.ids, self.draft_ids = (torch.tensor(part) for part in zip(*sorted(shared.items()), strict=True))
        self._table = _table(theirs.keys, ours, shared, target_size)
        self.longest = max(map(len, self._table))
        first = list(draft.encode(""))[:1]
        self._start = tuple(first) if first == [draft.bos_token_id] else ()

    def text(self, tokens: Iterable[int]) -> list[int]:
        """The draft's tokens for a whole text of the target's tokens."""
        whole = list(tokens)
        begins = not whole or self._table[whole[0]][:1] == self._start
        return [*(() if begins else self._start), *self.more(whole)]

    def more(self, tokens: Iterable[int]) -> list[int]:
        """The draft's tokens for tokens that continue a text."""
        return [index for token in tokens for index in self._table[token]]

    def back(self, size: int) -> Tensor:
        """int64 [size]: the draft's id of each of the target's ids; 0 where it is not shared."""
        return torch.zeros(size, dtype=torch.int64).index_copy_(0, self.ids, self.draft_ids)


def _table(keys: Mapping[int, Key], ours: Spelling, shared: Mapping[int, int], size: int) -> list[tuple[int, ...]]:
    """The draft's tokens of every id of the target; none for ids without a token."""
    table: list[tuple[int, ...]] = [()] * size
    for index, (special, spelt) in keys.items():
        if index in shared:
            table[index] = (shared[index],)
        elif not special:
            table[index] = ours.encode(spelt)
    return table


def _byte(token: str) -> bytes | None:
    """The byte of a sentencepiece token such as ``<0x41>``; None for any other token."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes.fromhex(token[3:5])
    return None


def _alphabet() -> dict[str, int]:
    """The characters of byte-level vocabularies (GPT-2): printable bytes as they are, the others from 256 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTES = _alphabet()
_CHARS = {byte: char for char, byte in _BYTES.items()}
