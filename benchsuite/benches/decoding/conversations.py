"""The second turn of a conversation: with the first turn's keys and values, and prefilled anew."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from benchsuite.benches.decoding.mixes import cut
from benchsuite.benches.decoding.ratios import Contrast, Family, Sample
from specdec.assembly import Assembly
from specdec.engine import Engine
from specdec.request import Request, SamplingParams

FIRST, ANSWER, QUESTION = 968, 16, 16
"""Tokens of the first prompt, of its answer, and of the question after it: 1,000 in all."""

BUDGET = 4
"""Tokens of the second answer."""

LONGEST = FIRST + ANSWER + QUESTION + BUDGET
"""Tokens of the whole conversation."""


def conversations_family(assembly: Assembly, text: Sequence[int]) -> Family:
    """The arms whose times to the first token are compared: one engine of plain decoding, one conversation."""
    longest = assembly.target.limit or LONGEST
    first = max(min(FIRST, longest - (LONGEST - FIRST)), 1)
    sizes = Assembly(
        assembly.registry, assembly.target, assembly.tokenizer, max_rows=1, max_length=first + LONGEST - FIRST
    )
    engine = sizes.engine(None)
    asked = Request(0, cut(text, 0, first), SamplingParams(max_new_tokens=ANSWER), keep=True)

    @cache
    def prompt() -> tuple[int, ...]:
        return (*asked.prompt, *engine.run([asked.alone()])[0].tokens, *cut(text, first, QUESTION))

    def kept() -> Sample:
        engine.run([asked])
        return answered(engine, Request(1, prompt(), SamplingParams(max_new_tokens=BUDGET), continues=asked.id))

    def anew() -> Sample:
        return answered(engine, Request(1, prompt(), SamplingParams(max_new_tokens=BUDGET)))

    return Family(
        {"second turn, kept": kept, "second turn, anew": anew, "anew again": anew},
        [
            Contrast("second turn, kept", "second turn, anew", "first_ms", "ms to token 1"),
            Contrast("anew again", "second turn, anew", "first_ms", "ms to token 1"),
        ],
        [
            f"turns: a conversation of {first + ANSWER + QUESTION:,} tokens, {QUESTION} of them the second question's; "
            "milliseconds from its submission to its first token, one row, plain decoding",
            "kept: the second request continues the first, with its keys and values; anew: it reads the whole text",
        ],
    )


def answered(engine: Engine, request: Request) -> Sample:
    """Run the second turn; return ``first_ms``: milliseconds from its submission to its first token."""
    done = engine.run([request])[0]
    return Sample({"first_ms": done.times[0] * 1e3}, (len(request.prompt), len(done.tokens)))
