"""Texts of so many words: in place of prompts of which a trace keeps only the lengths, and before prompts that no cache
may know.

Every word has five letters, and is one token behind a blank in usual vocabularies (a test holds it for SmolLM2's): so
many words are so many tokens, and equally many words have equally many tokens whether a token is a word or a byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

BLOCK = 512
"""Tokens that one of Mooncake's hash ids stands for."""

_FIVE_LETTERS = (
    "about above after again along among apart basic beach begin below black blood board bread break bring broad brown "
    "build carry catch cause chain chair chart check chest chief child civil claim class clean clear clock close cloud "
    "coast color could count court cover crime cross crowd daily dance death depth doubt dream dress drink drive early "
    "earth eight empty enemy enjoy enter equal event every exact exist extra faith field fifth fight final first floor "
    "focus force frame fresh front fruit glass grand grass great green gross group guard guess guide happy heart heavy "
    "horse hotel house human ideal image index inner issue joint judge large laugh layer learn least level light limit "
    "local logic lower lunch major march match maybe metal model money month moral motor mouth movie music never night "
    "noise north novel nurse ocean offer often order other outer owner paint panel paper party peace phase phone photo "
    "piece place plain plane plant plate point power press price pride prime prior prize proof proud queen quick quiet"
)
WORDS = tuple(_FIVE_LETTERS.split())


def _words(dice: Random, count: int) -> str:
    return " ".join(dice.choice(WORDS) for _ in range(count))


def new_text(name: str, words: int) -> str:
    """Return a text of so many words, another for every name.

    Example: ``new_text("line 1", 3)`` is three words.
    """
    return _words(Random(f"text {name}"), words)


def hashed_text(ids: Sequence[int], words: int, block: int = BLOCK, rest: str = "") -> str:
    """Return a text of so many words, of which each id is a ``block``; the last may be shorter.

    Equal ids are equal blocks, so that prompts share what they shared when the trace was recorded. Words beyond all
    blocks are another text for every name ``rest``.
    Example: ``hashed_text([7, 9], 600)`` begins as ``hashed_text([7], 512)``.
    """
    lengths = [min(block, words - block * place) for place in range(len(ids))]
    texts = [_words(Random(f"block {one}"), length) for one, length in zip(ids, lengths, strict=True)]
    if left := words - sum(lengths):
        texts.append(new_text(rest, left))
    return " ".join(texts)


NONCE = 6
"""Words of a nonce: 170 to the sixth power, so that two runs share none but by a chance of one in 10¹³."""


def nonce_text(dice: Random) -> str:
    """Return a line that begins a prompt which no cache of prompts may know; all have equally many tokens.

    Example: ``nonce_text(Random(0))`` is ``About these: …`` with six words behind it.
    """
    return f"About these: {_words(dice, NONCE)}.\n"
