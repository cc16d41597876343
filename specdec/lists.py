"""Lists as options write them. Imports no torch."""

from __future__ import annotations


def split_list(text: str) -> list[str]:
    """Split at commas outside brackets and quotes; empty parts are dropped.

    Example: ``split_list("ngram, oracle(0.8, seed=1)")`` is ``["ngram", "oracle(0.8, seed=1)"]``.
    """
    parts, start, depth, quote = [], 0, 0, ""
    for index, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    return [part.strip() for part in (*parts, text[start:]) if part.strip()]
