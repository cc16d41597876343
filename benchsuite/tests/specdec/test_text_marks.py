"""How many marks for bytes that are no character are held back: as many as a part of a character can have."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import pre_tokenizers

from specdec import TextStream, catalog

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
MARK = "\ufffd"


def _byte_token(byte: int) -> int:
    """The token of one byte: the printable bytes of Latin-1 stand for themselves."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("\xa1"), ord("\xac") + 1), *range(ord("\xae"), 256)]
    others = [other for other in range(256) if other not in printable]
    return ALPHABET.index(chr(byte) if byte in printable else chr(256 + others.index(byte)))


@pytest.mark.parametrize(
    ("given", "finish", "pieces"),
    [
        # Three marks may be a part of a character; of four the first is decided.
        (b"\xc3\xc3\xc3", None, ["", "", ""]),
        (b"\xc3\xc3\xc3\xc3", None, ["", "", "", MARK]),
        (b"\xc3\xc3\xc3\xc3\xc3", None, ["", "", "", MARK, MARK]),
        (b"\xc3\xc3", "length", ["", MARK * 2]),
        (b"a\xc3\xc3\xc3\xc3", None, ["a", "", "", "", MARK]),
        # What follows decides them: a character, or none.
        (b"\xc3\xc3\xa9", None, ["", "", MARK + "é"]),
        (b"\xc3\xc3\xc3b", None, ["", "", "", MARK * 3 + "b"]),
        (b"a\xc3b", None, ["a", "", MARK + "b"]),
    ],
)
def test_marks_are_shown_as_soon_as_no_byte_can_change_them(given: bytes, finish: Any, pieces: list[str]) -> None:
    tokenizer = catalog.byte_tokenizer()
    stream = TextStream(tokenizer)
    tokens = [_byte_token(byte) for byte in given]
    assert tokenizer.decode(tokens) == given.decode(errors="replace")
    assert [
        stream.feed(token, finish if place == len(tokens) else None) for place, token in enumerate(tokens, 1)
    ] == pieces
