"""What a stream of text holds back before it is decided, byte by byte: beginnings of stop strings and of characters."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from specdec import TextStream, catalog
from specdec.text import shown_text


def _pieces(text: str, stop: tuple[str, ...], finish: Any = None) -> list[str]:
    """What is shown with each byte of a text; ``finish`` comes with the last."""
    tokenizer = catalog.byte_tokenizer()
    tokens = tokenizer.encode(text, add_special_tokens=False)
    stream = TextStream(tokenizer, stop)
    return [stream.feed(token, finish if place == len(tokens) else None) for place, token in enumerate(tokens, 1)]


@pytest.mark.parametrize(
    ("text", "stop", "finish", "pieces"),
    [
        ("abc", (), None, ["a", "b", "c"]),
        # The longest end that may begin a stop string is held, whatever its length is.
        ("ababac", ("abac",), "stop", ["", "", "", "ab", "", ""]),
        ("ababax", ("abac",), None, ["", "", "", "ab", "", "abax"]),
        ("xab", ("abac",), "length", ["x", "", "ab"]),
        # A whole stop string that did not end the request begins no other one.
        ("abc", ("ab", "xyz"), None, ["", "ab", "c"]),
        ("xxy", ("xyz", "y"), "stop", ["", "x", "x"]),
        ("xyzab", ("ab", "zab"), "stop", ["x", "y", "", "", ""]),
        # Told to stop without one, all is shown.
        ("abc", ("q",), "stop", ["a", "b", "c"]),
        ("abc", (), "stop", ["a", "b", "c"]),
        # The bytes of a character are shown with its last.
        ("é🙂b", (), None, ["", "é", "", "", "", "🙂", "b"]),
    ],
)
def test_each_byte_shows_what_it_decides(text: str, stop: tuple[str, ...], finish: Any, pieces: list[str]) -> None:
    assert _pieces(text, stop, finish) == pieces


def test_a_text_of_one_token_is_shown() -> None:
    tokenizer = catalog.byte_tokenizer()
    [token] = tokenizer.encode("a", add_special_tokens=False)
    assert shown_text(tokenizer, [token], "length") == "a"
    assert shown_text(tokenizer, [token], "stop", ("a",)) == ""


class _Cleaning:
    """A tokenizer of whole words that cleans up spaces before marks unless told not to, as WordPiece's do."""

    added_tokens_decoder: ClassVar[dict[int, Any]] = {}
    all_special_ids: ClassVar[list[int]] = []
    words = ("so ", ". ", "it ", "is ", ", ")

    def decode(
        self, tokens: list[int], skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool = True
    ) -> str:
        text = "".join(self.words[token] for token in tokens)
        return text.replace(" .", ".").replace(" ,", ",") if clean_up_tokenization_spaces else text


def test_spaces_before_marks_are_shown_as_they_are_decoded() -> None:
    tokenizer: Any = _Cleaning()
    stream = TextStream(tokenizer)
    assert [stream.feed(token) for token in (0, 1, 2, 3, 4)] == ["so ", ". ", "it ", "is ", ", "]


def test_a_token_is_decoded_once_with_at_most_32_before_it_and_a_shorter_tail_once_in_17(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer, decoded = catalog.byte_tokenizer(), list[int]()
    decode = tokenizer.decode

    def counted(tokens: list[int], **options: Any) -> Any:
        decoded.append(len(tokens))
        return decode(tokens, **options)

    monkeypatch.setattr(tokenizer, "decode", counted)
    stream = TextStream(tokenizer)
    text = "".join(stream.feed(token) for token in tokenizer.encode("ab" * 60, add_special_tokens=False))
    assert text == "ab" * 60
    assert decoded[:34] == [*range(1, 34), 16]
    assert decoded[34:] == [*range(17, 34), 16] * 5 + [17, 18]
