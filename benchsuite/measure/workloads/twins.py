"""Twins of prompts: the same task with other names and numbers, so that nobody can have answered it before."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from benchsuite.measure.workloads import Question

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NAMES = (
    *(
        "Adrian",
        "Beatrix",
        "Cecil",
        "Doris",
        "Edgar",
        "Fiona",
        "Gordon",
        "Hester",
        "Ivan",
        "Judith",
        "Konrad",
        "Leonie",
    ),
    *(
        "Magnus",
        "Nadia",
        "Otto",
        "Pernilla",
        "Quentin",
        "Rosalind",
        "Sven",
        "Tilda",
        "Ulrich",
        "Viola",
        "Walter",
        "Yvonne",
    ),
)
"""What names are exchanged for; no prompt of this project has them."""

NAME = re.compile(r"(?<=[a-z,;] )[A-Z][a-z]+\b")
"""A capitalised word within a sentence."""


def twin_of(text: str, coin: random.Random) -> str:
    """Return the text of a prompt with other names and numbers, behind a line of its own.

    A word that is capitalised within a sentence becomes a name, and each digit another one, the same wherever they
    occur: what an answer copies from its prompt is as long as before. The line, a name and ten digits, is there because
    a text may have neither.

    Example: ``twin_of("Ask Mira for 7 eggs.", random.Random(1))`` is about another person and number of eggs.
    """
    names = [*dict.fromkeys(NAME.findall(text))]
    chosen = dict(zip(names, _names(len(names), coin), strict=True))
    digits = coin.sample("123456789", 9)
    known = re.compile(rf"\b({'|'.join(map(re.escape, names))})\b") if names else None
    exchanged = known.sub(lambda found: chosen[found[0]], text) if known else text
    exchanged = exchanged.translate(str.maketrans("123456789", "".join(digits)))
    return f"{coin.choice(NAMES)}, {coin.randrange(10**10):010}.\n{exchanged}"


def twin_ids(question: Question, tokenizer: PreTrainedTokenizerBase, coin: random.Random, room: int) -> tuple[int, ...]:
    """Return the token ids of a question's first turn as a twin, at most ``room`` of them.

    A longer one loses its first words, and not the line that makes it a text of its own.
    """
    line, _, rest = twin_of(question.turns[0], coin).partition("\n")
    words, ids = rest.split(" "), tuple[int, ...]()
    # The line has tokens of its own: there is room for them where there are fewer before.
    before = question.before and replace(question.before, tokens=question.before.tokens * 15 // 16)
    for skipped in range(len(words)):
        ids = replace(question, turns=(f"{line}\n{' '.join(words[skipped:])}",), before=before).prompt(tokenizer, ())
        if len(ids) <= room:
            break
    return ids[-room:]


def _names(count: int, coin: random.Random) -> list[str]:
    """So many different names: of one word or, if there are not enough, of more."""
    found = list[str]()
    while len(found) < count:
        found += [" ".join([name] * (1 + len(found) // len(NAMES))) for name in coin.sample(NAMES, len(NAMES))]
    return found[:count]
